import numpy as np
import pytest

from tenfold.errors import ExperimentError
from tenfold.mixing import is_round_due
from tenfold.workers.task import LR_SCALINGS


def steps_with_rounds(until: int, **options: int) -> list[int]:
    return [step for step in range(1, until + 1) if is_round_due(step, **options)]


def test_rounds_come_every_so_many_steps():
    assert steps_with_rounds(4, sync_every=1) == [1, 2, 3, 4]
    assert steps_with_rounds(10, sync_every=3) == [3, 6, 9]


def test_post_local_sgd_mixes_every_step_first():
    assert steps_with_rounds(13, sync_every=4, local_after=5) == [1, 2, 3, 4, 5, 9, 13]


def test_many_steps_are_answered_at_once():
    steps = np.arange(1, 40)
    assert is_round_due(steps, 4, 5).tolist() == [is_round_due(int(step), 4, 5) for step in steps]


def test_no_steps_between_rounds_are_refused():
    with pytest.raises(ExperimentError, match="sync_every"):
        is_round_due(1, 0)


def test_the_learning_rate_follows_the_replicas():
    assert [LR_SCALINGS[kind](16) for kind in ("none", "linear", "sqrt")] == [1, 16, 4]
    assert {LR_SCALINGS[kind](1) for kind in ("auto", "none", "linear", "sqrt")} == {1}
    assert [LR_SCALINGS["auto"](n) for n in (4, 16, 1024)] == [2, 2, 2]
    assert LR_SCALINGS["auto"](8) == LR_SCALINGS["sqrt"](8)
