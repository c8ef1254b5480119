"""What a plan's choice costs relative to the best of an exhaustive grid, with learners whose curves are made up.

The gap of a run falls with the samples as a power, with a bend, both a little different for each global batch; runs of
few steps learn less; equal runs differ by their seed, and settings with the same global batch hardly in addition.
Towards the end of a schedule a run gets better with each epoch, and stops at the target. As in `benchmarks/plan.py`,
the grid knows for each setting the shortest schedule with which all of three seeds reach the target. The planner knows
only what it trains, in a limited time.
"""

import math
import random
import statistics
from typing import Any

import pytest
import torch

from tenfold.cluster import Cluster
from tenfold.data import Splits, Tensors
from tenfold.experiment import Experiment
from tenfold.prediction.planning import planner
from tenfold.prediction.planning import planner as trial_search
from tenfold.prediction.planning.candidates import Candidate, CostModel, candidates_on
from tenfold.prediction.planning.learning import Probe

CLUSTER = Cluster(groups=[{"count": 2, "step_seconds": 0.01, "link": "infiniband"}])
CANDIDATES = [item for item in candidates_on(CLUSTER, Experiment(model="mlp", hidden=[2])) if item.looseness == 0]
TARGET, WORLDS = 0.98, 12
LAST_EPOCHS = 1.0
"""By how much the logarithm of the gap falls during a run, after its first steps."""


def splits(train: int, validation: int) -> Splits:
    parts = [Tensors(torch.zeros(count, 2), torch.arange(count) % 2) for count in (train, validation)]
    return Splits(name="made", train=parts[0], validation=parts[1], test=None, shape=(2,), classes=2, outputs=2)


class World:
    """Learners that need about so many epochs, and a clock that only their training moves."""

    def __init__(self, number: int, data: Splits, epochs: float, noise: float, epoch_seconds: float) -> None:
        self.number, self.data, self.epochs, self.noise = number, data, epochs, noise
        self.epoch_seconds, self.now = epoch_seconds, 0.0
        drawn = random.Random(number)
        self.slope, self.bend = drawn.uniform(0.4, 0.9), drawn.uniform(-0.04, 0.04)
        self.few_steps = drawn.uniform(30, 300)

    def gap(self, experiment: Experiment, samples: int, seed: int) -> float:
        workers = experiment.parallel.workers
        batch = workers * experiment.training.samples_per_step
        own = random.Random(f"{self.number} {batch}")
        height = 0.25 * math.log((batch + 500) / 600) + own.gauss(0, 0.06)
        slope, bend = self.slope + own.gauss(0, 0.03), self.bend + own.gauss(0, 0.02)
        height += random.Random(f"{self.number} {batch} {workers}").gauss(0, 0.02)
        x = math.log(self.effective(samples, batch) / self.effective(self.epochs * len(self.data.train), 64))
        luck = random.Random(f"{self.number} {batch} {workers} {samples} {seed}").gauss(0, 1)
        return min(0.9, (1 - TARGET) * math.exp(height - slope * x + bend * x * x + self.noise * luck))

    def effective(self, samples: float, batch: int) -> float:
        """Return what samples are worth in steps of a batch."""
        return samples / (1 + self.few_steps * batch / samples)

    def train(self, experiment: Experiment, data: Splits, samples: int, _predict: Any) -> Probe:
        training = self.epoch_seconds * samples / len(data.train)
        self.now += 0.3 + training
        epochs, seed = samples // len(data.train), experiment.training.seed
        values = self.values(experiment, samples, seed)
        steps = samples // (experiment.parallel.workers * experiment.training.samples_per_step)
        return Probe(samples, steps, "accuracy", values, training, {}, seed=seed, epochs=epochs)

    def values(self, experiment: Experiment, samples: int, seed: int) -> tuple[float, ...]:
        """Return the accuracy after each epoch of a run."""
        watched, epochs = len(self.data.validation or ()), max(1, samples // len(self.data.train))
        last = self.gap(experiment, samples, seed)
        gaps = [min(0.9, last * math.exp(LAST_EPOCHS * (1 - at / epochs))) for at in range(1, epochs + 1)]
        return tuple(1 - round(gap * watched) / watched for gap in gaps)

    def reaches(self, one: Candidate, epochs: int, seeds: range = range(3)) -> float:
        samples = epochs * len(self.data.train)
        return statistics.mean(max(self.values(one.experiment, samples, seed)) >= TARGET for seed in seeds)

    def seconds(self, costs: CostModel, one: Candidate, epochs: int) -> float:
        """Return the seconds in all until runs with three seeds stop, in the mean."""
        runs = [self.values(one.experiment, epochs * len(self.data.train), seed) for seed in range(3)]
        stops = [next((at for at, value in enumerate(run, 1) if value >= TARGET), epochs) for run in runs]
        cost = costs(one, statistics.mean(stops))
        assert cost is not None
        return cost.total

    def soonest(self, costs: CostModel) -> float:
        """Return the seconds of the best setting in the grid."""
        shortest = [
            (item, next((epochs for epochs in range(1, 25) if self.reaches(item, epochs) == 1), 25))
            for item in CANDIDATES
        ]
        return min(self.seconds(costs, *item) for item in shortest)


@pytest.mark.parametrize(
    ("data", "epochs", "noise", "epoch_seconds"),
    [(splits(50_000, 10_000), 2.0, 0.06, 4.0), (splits(960, 480), 4.0, 0.1, 0.1)],
    ids=["few epochs", "short epochs"],
)
def test_the_choice_is_nearly_as_soon_as_the_best_of_the_grid(
    data: Splits, epochs: float, noise: float, epoch_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = CostModel(CANDIDATES, data, CLUSTER, print, deadline=0)
    monkeypatch.setattr(trial_search, "measure_noise", lambda *_: 500.0)
    ratios, reached, spent = [], [], []
    for number in range(WORLDS):
        world = World(number, data, epochs, noise, epoch_seconds)
        monkeypatch.setattr(trial_search, "train_probe", world.train)
        for module in (planner, trial_search):
            monkeypatch.setattr(module, "perf_counter", lambda world=world: world.now)
        best = planner.best_of(planner.search(CANDIDATES, data, TARGET, cluster=CLUSTER, budget=60), TARGET)
        assert best.epochs is not None
        ratios.append(world.seconds(costs, best.candidate, best.epochs) / world.soonest(costs))
        reached.append(world.reaches(best.candidate, best.epochs, range(5000, 5020)))
        spent.append(world.now)
    assert statistics.median(ratios) <= 1.1
    assert statistics.mean(ratios) <= 1.1
    assert statistics.mean(reached) >= 0.8  # of runs with seeds that the planner has not tried
    assert max(spent) <= 60
