"""The clock of pipelines against what can be computed by hand."""

import itertools

import pytest

from tenfold.cluster.event_clock import StageTime, round_of_parts, time_pipeline
from tenfold.mixing.round import bound, exact_round


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 8), (4, 16)])
def test_equal_stages_reach_the_bound_without_messages(schedule: str, stages: int, micro_batches: int) -> None:
    times = [StageTime(1.0, 2.0)] * stages
    step = time_pipeline(schedule, times, micro_batches, lambda _from, _to: 0.0)
    alone = stages * micro_batches * 3.0
    assert alone / step.seconds == pytest.approx(bound([1.0] * stages, micro_batches))


def test_lanes_show_the_bubble_and_no_stage_does_two_things_at_once() -> None:
    step = time_pipeline("1f1b", [StageTime(1.0, 2.0, 0.5)] * 3, 4, lambda _from, _to: 0.1)
    for stage in range(3):
        spans = sorted((span for span in step.spans if span.worker == stage), key=lambda span: span.start)
        assert all(a.start + a.seconds <= b.start + 1e-9 for a, b in itertools.pairwise(spans))
        assert sum(span.seconds for span in spans if span.kind == "compute") == pytest.approx(4 * 3.0 + 0.5)
        assert any(span.kind == "wait" for span in spans)


def test_messages_that_take_longer_than_the_work_set_the_pace() -> None:
    step = time_pipeline("gpipe", [StageTime(0.1, 0.1)] * 2, 8, lambda _from, _to: 5.0)
    assert step.seconds > 8 * 5.0


def test_the_parts_of_replicas_average_with_the_same_parts_of_others() -> None:
    assert round_of_parts(exact_round(2), 3).groups == ((0, 3), (1, 4), (2, 5))
