"""The search, with learning that follows a formula instead of training."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from tenfold.cluster import Cluster
from tenfold.data import Splits, Tensors
from tenfold.errors import ExperimentError, TrainingError
from tenfold.experiment import Experiment
from tenfold.prediction.planning import evidence, planner
from tenfold.prediction.planning import learning as epoch_choice
from tenfold.prediction.planning import planner as trial_search
from tenfold.prediction.planning.candidates import Candidate, candidates_on
from tenfold.prediction.planning.learning import Probe

CLUSTER = Cluster(groups=[{"count": 4, "step_seconds": 0.01, "link": "infiniband"}])
trained: list[tuple[int, int, int]] = []
unlucky: list[float] = []
"""By how much the gap is larger with the experiment's own seed."""


def splits(samples: int = 6000) -> Splits:
    part = Tensors(torch.zeros(samples, 2), torch.arange(samples) % 2)
    return Splits(name="made", train=part, validation=part, test=part, shape=(2,), classes=2, outputs=2)


@pytest.fixture(autouse=True)
def _by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    trained.clear()
    unlucky.clear()

    def probe(experiment: Experiment, data: Splits, samples: int, _predict: Any) -> Probe:
        assert data.test is None
        workers, batch = experiment.parallel.workers, experiment.training.samples_per_step
        if batch == 128:
            raise TrainingError("the loss became nan before step 3 (worker 0); try a learning rate below 1")
        trained.append((workers, batch, samples))
        gap = 2.0 * (samples / (workers * batch + 500)) ** -0.9
        epochs, seed = samples // len(data.train), experiment.training.seed
        gap *= math.prod(unlucky) if seed == 0 else 1
        values = (*[0.0] * (epochs - 1), 1 - gap)
        return Probe(samples, samples // batch, "accuracy", values, 1e-6, {}, seed=seed, epochs=epochs)

    monkeypatch.setattr(trial_search, "train_probe", probe)
    monkeypatch.setattr(trial_search, "measure_noise", lambda *_: 500.0)


def find(target: float, **options: Any) -> planner.Search:
    candidates = candidates_on(CLUSTER, Experiment(model="mlp", hidden=[2], lr=0.1))
    return planner.search(candidates, splits(), target, cluster=CLUSTER, **options)


@cache
def usual() -> planner.Search:
    """Search once for the tests that only look at what is found."""
    return find(0.9)


def test_the_setting_that_needs_the_fewest_seconds_is_chosen() -> None:
    best = planner.best_of(usual(), 0.9)
    assert best.candidate.workers == 4
    assert best.experiment.parallel.average == "gradients"
    samples = (2.0 / 0.1) ** (1 / 0.9) * (best.candidate.batch + 500)
    assert best.epochs is not None
    assert best.epochs == math.ceil(samples / 6000)
    assert (best.tried, best.reached) == (evidence.MOST_SEEDS, evidence.MOST_SEEDS)
    assert best.cost is not None
    assert best.interval is not None
    assert best.interval[0] <= best.cost.training <= best.interval[1]


def test_epochs_with_which_the_experiments_own_seed_missed_are_not_recommended() -> None:
    unlucky.append(1.3)
    best = planner.best_of(find(0.9), 0.9)
    [own] = [probe for probe in best.probes if probe.seed == 0 and probe.epochs == best.epochs]
    assert own.value >= 0.9


def test_a_run_that_stops_early_takes_only_the_epochs_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    late = planner.best_of(usual(), 0.9)
    by_formula = trial_search.train_probe

    def soon(*arguments: Any) -> Probe:
        found = by_formula(*arguments)
        return replace(found, values=(found.values[-1],) * len(found.values))

    monkeypatch.setattr(trial_search, "train_probe", soon)
    early = planner.best_of(find(0.9), 0.9)
    assert late.stops_after == late.epochs == early.epochs
    assert early.stops_after == 1
    assert early.cost is not None
    assert late.cost is not None
    assert early.cost.total < late.cost.total


def test_the_expected_seconds_of_a_confirmed_schedule_include_those_of_seeds_that_may_miss() -> None:
    best = planner.best_of(usual(), 0.9)
    assert best.probability is not None
    assert best.cost is not None
    assert best.expected is not None
    assert best.epochs is not None
    assert best.reached == best.tried
    again = best.cost.total * (1 + epoch_choice.next_epochs(best.epochs) / best.epochs)
    assert best.probability < 1
    assert best.expected == pytest.approx(best.probability * best.cost.total + (1 - best.probability) * again, rel=0.05)


def test_longer_schedules_are_tried_as_long_as_they_reach_the_target_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    shortest = planner.best_of(usual(), 0.9).epochs
    assert shortest is not None
    by_formula = trial_search.train_probe

    def sooner(*arguments: Any) -> Probe:
        found = by_formula(*arguments)
        after = min(found.epochs, max(2, shortest - 1 - 2 * (found.epochs - shortest)))
        last = found.values[-1]
        return replace(found, values=tuple(last if epoch >= after else 0.0 for epoch in range(1, found.epochs + 1)))

    monkeypatch.setattr(trial_search, "train_probe", lambda *a: sooner(*a) if a[2] >= 6000 else by_formula(*a))
    best = planner.best_of(find(0.9), 0.9)
    assert best.epochs is not None
    assert best.epochs > shortest
    assert best.stops_after == 2


def test_only_a_few_settings_have_trial_runs_and_none_more_than_it_has_seeds() -> None:
    find(0.9)
    long = [message for message in trained if message[2] > 6000]
    assert len({item[:2] for item in long}) < len({message[:2] for message in trained})
    assert max(trained.count(message) for message in trained) <= evidence.MOST_SEEDS


def test_a_setting_that_diverges_is_named_and_does_not_stop_the_search() -> None:
    dropped = [
        assessment.dropped
        for assessment in usual().assessments
        if assessment.candidate.experiment.training.batch_size == 128
    ]
    assert any(text.startswith("diverged: the loss became nan") for text in dropped)


def test_settings_that_learn_the_same_diverge_together() -> None:
    base = next(
        item for item in candidates_on(CLUSTER, Experiment(model="mlp", hidden=[2], lr=0.1)) if item.batch == 64
    )
    same = [Candidate(base.experiment.replace(batch_size=128, threads=threads)) for threads in (1, 2)]
    lines: list[str] = []
    found = planner.search([base, *same], splits(), 0.9, cluster=CLUSTER, report=lines.append)
    assert [assessment.has_diverged for assessment in found.assessments if assessment.candidate in same] == [True, True]
    assert sum("batch 128" in line for line in lines) == 1


def test_a_target_out_of_sight_is_refused_with_what_was_seen() -> None:
    found = find(0.999999, budget=0.001)
    with pytest.raises(ExperimentError, match="accuracy"):
        planner.best_of(found, 0.999999)


@pytest.mark.parametrize("target", [1.0, 1.5])
def test_a_perfect_target_is_refused(target: float) -> None:
    with pytest.raises(ExperimentError, match="should be below 1"):
        find(target)
