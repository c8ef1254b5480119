"""The noise of gradients, seen from how far replicas move apart."""

import math
from dataclasses import replace

import pytest
import torch

from tenfold.prediction.planning.evidence import Trials, WallTimes, data_factor, noise_batch, stop_share
from tenfold.prediction.planning.learning import Probe


@pytest.mark.parametrize(("batch", "steps", "sigma"), [(64, 1, 0.5), (16, 8, 2.0), (256, 4, 0.05)])
def test_the_noise_of_synthetic_gradients_is_found(batch: int, steps: int, sigma: float) -> None:
    generator = torch.Generator().manual_seed(3)
    gradient = torch.randn(2000, generator=generator)
    rate, replicas = 0.01, 64
    noise = torch.randn(replicas, steps, 2000, generator=generator) * sigma / math.sqrt(batch)
    moves = -rate * (gradient + noise).sum(dim=1)
    expected = 2000 * sigma**2 / float(gradient.square().sum())
    assert noise_batch(moves, batch, steps) == pytest.approx(expected, rel=0.1)


def test_replicas_without_a_common_direction_have_infinite_noise() -> None:
    moves = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert noise_batch(moves, 8, 1) == math.inf


def test_equal_replicas_have_no_noise() -> None:
    assert noise_batch(torch.ones(4, 3), 8, 1) == 0.0


def test_batches_far_below_the_noise_need_the_same_samples() -> None:
    assert data_factor(64, 32, 1e6) == pytest.approx(1.0, abs=1e-3)
    assert data_factor(2048, 1024, 1.0) == pytest.approx(2.0, abs=1e-2)
    assert data_factor(64, 32, math.inf) == 1.0


def probe(*values: float, seed: int = 0, epochs: int | None = None) -> Probe:
    epochs = len(values) if epochs is None else epochs
    return Probe(1000 * len(values), 10, "accuracy", values, 2.0, {}, seed=seed, epochs=epochs, evaluation=0.1)


def test_a_run_stops_after_the_epoch_that_reached_the_target() -> None:
    probes = [probe(0.5, 0.91, 0.9), probe(0.5, 0.6, 0.8, seed=1), probe(0.5, 0.6, 0.95, seed=2), probe(0.95, 0.95)]
    trials = Trials.with_epochs(probes, 3, gap=0.1)
    assert (len(trials), trials.reached, trials.missed) == (3, 2, [1])
    assert trials.stops == [2, 3, 3]
    assert stop_share(probes, 0.1) == pytest.approx((2 / 3 + 1 + 1 / 2) / 3)


def test_the_first_epoch_of_a_longer_run_has_its_own_seconds() -> None:
    longer = replace(probe(0.5, 0.6, 0.7), first_seconds=0.8)  # 2 s in all
    assert longer.epoch_seconds(steps=4) == pytest.approx((0.8, 0.6))
    assert probe(0.5).epoch_seconds(steps=4) == pytest.approx((0.8, 0.8))  # 10 steps in 2 s


def test_parts_of_an_epoch_say_nothing_about_when_runs_stop() -> None:
    assert stop_share([probe(0.95, epochs=0)], 0.1) is None


def test_only_training_grows_with_the_samples() -> None:
    walls = WallTimes(1000)
    assert walls.predict_any(10_000) == 0
    walls.add("known", 5.3, probe(0.5, 0.6, 0.7))  # 3 s once, 2 s of training, 3 evaluations
    assert walls.predict("known", 6000) == walls.predict_any(6000) == pytest.approx(3 + 4 + 6 * 0.1)
    assert walls.predict("other", 6000) is None
