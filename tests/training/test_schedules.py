import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped

from tenfold.training.schedules import SCHEDULES, factor

law = settings(deadline=None, derandomize=True)
steps = st.integers(1, 400)


def rates_of(scheduler, optimizer, count):
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return rates


def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


@law
@given(steps)
def test_cosine_is_torchs_annealing(total):
    optimizer = sgd()
    theirs = rates_of(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total), optimizer, total)
    assert [factor("cosine", step, total) for step in range(total)] == pytest.approx(theirs, abs=1e-9)


@law
@given(st.integers(20, 400))
def test_one_cycle_is_torchs_up_to_a_step(total):
    """Torch puts the peak at 0.3 n - 1, here it is at 0.3 (n - 1): 0.7 of a step later, a slope of pi/2 per rise."""
    optimizer = sgd()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=total, cycle_momentum=False)
    theirs = rates_of(scheduler, optimizer, total - 1)
    ours = [factor("one-cycle", step, total) for step in range(total)]
    assert ours[: total - 1] == pytest.approx(theirs, abs=0.7 * 1.58 / (0.3 * total - 1))
    assert ours[0] == pytest.approx(1 / 25)
    assert ours[-1] == pytest.approx(1 / 25e4)


@law
@given(st.integers(1, 100))
def test_one_cycle_peaks_at_the_whole_rate(tenths):
    total = 10 * tenths + 1
    ours = [factor("one-cycle", step, total) for step in range(total)]
    assert max(ours) == ours[3 * tenths] == pytest.approx(1)


@law
@given(steps)
def test_constant_is_one(total):
    assert {factor("constant", step, total) for step in range(total)} == {1.0}


@law
@given(st.sampled_from(list(SCHEDULES)), steps, st.integers(0, 400))
def test_the_rate_is_never_negative_never_more_than_the_whole_and_begins_above_zero(schedule, total, warmup):
    ours = [factor(schedule, step, total, min(warmup, total)) for step in range(total)]
    assert all(0 <= our <= 1 + 1e-12 for our in ours)
    assert ours[0] > 0


@law
@given(st.sampled_from(list(SCHEDULES)), steps, st.integers(0, 400))
def test_the_warmup_rises_evenly_and_then_the_schedule_runs_over_the_rest(schedule, total, warmup):
    warmup = min(warmup, total)
    ours = [factor(schedule, step, total, warmup) for step in range(total)]
    assert ours[:warmup] == pytest.approx([(step + 1) / (warmup + 1) for step in range(warmup)])
    assert ours[warmup:] == pytest.approx([factor(schedule, step, total - warmup) for step in range(total - warmup)])


@looped("schedule", SCHEDULES)
def test_after_the_end_nothing_more_happens(schedule):
    last = factor(schedule, 10, 10)
    assert factor(schedule, 1000, 10) == last
