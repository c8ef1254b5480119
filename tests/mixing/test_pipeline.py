"""Schedules of pipelines: what each stage does in a step, in which order."""

from hypothesis import given
from hypothesis import strategies as st

from tenfold.mixing.round import balance, bound, operations

SHAPES = st.tuples(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(1, 12))


@given(SHAPES)
def test_every_micro_batch_passes_every_stage_once_in_each_direction_and_in_order(shape: tuple[str, int, int]) -> None:
    schedule, stages, micro_batches = shape
    for stage in range(stages):
        done = operations(schedule, stage, stages, micro_batches)
        for kind in ("forward", "backward"):
            assert [item.micro_batch for item in done if item.kind == kind] == list(range(micro_batches))
        kept = 0
        for kind, number in done:
            kept += 1 if kind == "forward" else -1
            assert kind == "forward" or done.index(("forward", number)) < done.index(("backward", number))
            assert 0 <= kept <= (micro_batches if schedule == "gpipe" else stages - stage)


def test_the_bound_falls_with_bubble_and_imbalance() -> None:
    assert balance([1.0, 3.0]) == 2 / 3
    assert bound([1.0, 1.0], 8) == 2 * 8 / 9
    assert bound([1.0, 3.0], 8) == 2 * (2 / 3) * 8 / 9
