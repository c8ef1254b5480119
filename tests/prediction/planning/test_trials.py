"""What trial runs say about a schedule, and how long they take."""

from dataclasses import replace

import pytest

from tenfold.prediction.planning.evidence import Trials, WallTimes, stop_share
from tenfold.prediction.planning.learning_probe import Probe


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
