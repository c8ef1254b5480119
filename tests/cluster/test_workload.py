import math

import numpy as np
import pytest
from largest import expected_largest, harmonic, largest_of_normals
from looped import looped

from tenfold.cluster import StepTime
from tenfold.cluster.workload import Pace, factors
from tenfold.errors import ExperimentError

NOISES = ["log-normal", "shifted-exponential"]


def rng(seed=0):
    return np.random.default_rng(seed)


def test_the_largest_of_normals():
    assert largest_of_normals(1) == pytest.approx((0, 1), abs=1e-6)
    assert largest_of_normals(2) == pytest.approx((1 / math.sqrt(math.pi), 1 - 1 / math.pi), abs=1e-6)
    assert largest_of_normals(100)[0] == pytest.approx(2.50759, abs=1e-4)


def test_harmonic_numbers():
    assert harmonic(1) == 1
    assert harmonic(4) == pytest.approx(25 / 12)
    assert harmonic(1001) == pytest.approx(harmonic(1000) + 1 / 1001, rel=1e-12)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_factors_have_the_mean_one_and_their_spread(noise, spread):
    drawn = factors(rng(), noise, spread, (400_000,)).astype(np.float64)
    assert drawn.mean() == pytest.approx(1, abs=0.005)
    deviation = math.sqrt(math.expm1(spread**2)) if noise == "log-normal" else spread
    assert drawn.std() == pytest.approx(deviation, rel=0.02)
    assert drawn.min() > 0


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("p", [2, 16, 256])
def test_the_largest_of_many_factors(noise, p):
    drawn = factors(rng(), noise, 0.4, (2_000_000 // p, p))
    assert drawn.max(axis=1).mean() == pytest.approx(expected_largest(p, noise, 0.4), rel=0.01)


def test_a_worker_keeps_its_own_factor_and_steps_vary_around_it():
    pace = Pace([StepTime(mean=3.0, between_workers=0.5, between_steps=0.01)] * 50, 2, rng())
    drawn = np.concatenate([pace.draw(300), pace.draw(100)], axis=1)
    assert drawn.shape == (2, 400, 50)
    levels = drawn.mean(axis=1)
    assert np.log(levels).std() == pytest.approx(0.5, rel=0.25)
    assert (drawn / levels[:, None]).std() == pytest.approx(0.01, rel=0.05)


def test_every_worker_can_have_a_step_time_of_its_own():
    drawn = Pace([StepTime(mean=1.0), StepTime(mean=2.0), StepTime(mean=2.0)], 2, rng()).draw(3)
    assert drawn.tolist() == [[[1.0, 2.0, 2.0]] * 3] * 2


def test_a_trace_is_drawn_in_stretches_with_its_workers_together():
    trace = np.arange(1.0, 101.0)[:, None] * [1.0, 3.0]
    drawn = Pace([step := StepTime(mean=float(trace.mean()), trace=trace)] * 2, 1, rng()).draw(64)[0]
    np.testing.assert_allclose(drawn[:, 1], 3 * drawn[:, 0])
    following = np.isclose(np.diff(drawn[:, 0]), 1)
    assert following.sum() >= 50
    scaled = Pace([StepTime(mean=2 * step.mean, trace=trace)] * 2, 1, rng()).draw(64)[0]
    np.testing.assert_allclose(scaled, 2 * drawn)


def test_stretches_go_on_from_one_draw_to_the_next():
    trace = np.arange(1.0, 1001.0)[:, None]
    pace = Pace([StepTime(mean=float(trace.mean()), trace=trace)], 1, rng())
    drawn = np.concatenate([pace.draw(5)[0, :, 0] for _ in range(32)])
    stretches = drawn.reshape(-1, 16)
    np.testing.assert_allclose(np.diff(stretches, axis=1) % 1000, 1)


def test_more_workers_than_a_trace_has_are_further_machines():
    trace = rng().random((50, 2)) + 0.5
    drawn = Pace([StepTime(mean=float(trace.mean()), trace=trace)] * 5, 3, rng()).draw(40)
    assert drawn.shape == (3, 40, 5)
    assert set(np.round(drawn.ravel(), 9)) <= set(np.round(trace.ravel(), 9))
    assert not np.array_equal(drawn[:, :, 0], drawn[:, :, 2])


@looped(
    ("fields", "sentence"),
    [
        ({"mean": 0.0}, "a step takes 0.0 s; it must take more than 0"),
        ({"mean": 1.0, "between_steps": -0.1}, "spread"),
        ({"mean": 1.0, "between_steps": 2.0, "noise": "shifted-exponential"}, "allows at most 1"),
        ({"mean": 1.0, "fixed": 2.0}, "2.0 s of a step are fixed; it must be 0 to its mean, 1.0 s"),
        ({"mean": 1.0, "trace": np.zeros((2, 2))}, "a trace of step times is an array"),
    ],
)
def test_impossible_step_times_are_refused(fields, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        StepTime(**fields)
