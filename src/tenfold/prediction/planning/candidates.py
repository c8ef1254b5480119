"""The settings among which a plan chooses: what this machine or a cluster has room for."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tenfold.cluster.cluster import Cluster
from tenfold.engines.prepare import resolve_defaults
from tenfold.engines.validate import validate_mixing
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.mixing.rate_scaling import rate_scale
from tenfold.prediction.calibration.probes import counts_up_to
from tenfold.training.optimizers.make_optimizer import OPTIMIZERS, base_rate

ROUNDS = (4, 16, 64)
"""Steps between two rounds, where weights are averaged."""
BATCHES, DEVICE_BATCHES = (0.5, 1, 2), (1, 2, 4)
"""Batch sizes that are tried, relative to the usual one for the number of workers; a GPU has room for larger ones."""

SAVING = 0.97
"""The part of another's seconds that a more loosely coupled setting may take at most to be worth a try."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One setting: the experiment with everything but its epochs decided."""

    experiment: Experiment

    @property
    def workers(self) -> int:
        """Its replicas."""
        return self.experiment.division.workers

    @property
    def threads(self) -> int | None:
        """Of each worker; None where a device or a cluster decides."""
        return self.experiment.machine.threads

    @property
    def device(self) -> str:
        """Where its replicas train."""
        return self.experiment.machine.device

    @property
    def batch(self) -> int:
        """Samples of one step of all replicas together."""
        return self.experiment.training.samples_per_step * self.workers

    @property
    def looseness(self) -> float:
        """How loosely replicas are coupled: 0 for averaged gradients, otherwise the steps between exact means."""
        division = self.experiment.division
        if self.workers == 1 or division.average == "gradients":
            return 0
        inexact = division.strategy != "allreduce"
        return (math.inf if division.pace == "epoch" else division.pace) * (1 + inexact)

    @property
    def mixing(self) -> tuple[Any, ...]:
        """How its replicas are averaged; empty for a single one."""
        division = self.experiment.division
        pace = division.pace if division.average == "weights" else 1
        return (division.strategy, division.average, pace, division.overlap) if self.workers > 1 else ()

    @cached_property
    def curve_key(self) -> str:
        """Names its learning curve: candidates of one name learn equally well, up to the noise of their runs.

        Replicas that average their gradients take the steps of a single one with their global batch, if the learning
        rate is the same. Those that average weights learn in their own way.
        """
        training = self.experiment.training
        has_usual_rate = isinstance(training.optimizer, str) and training.optimizer in OPTIMIZERS
        rate = rate_scale(self.experiment) * (base_rate(training) if has_usual_rate else 1.0)
        mixing = (self.workers, *self.mixing) if self.looseness else ()
        return f"{self.device} {self.batch} {rate:.4g} {mixing}"


def candidates_here(base: Experiment, *, most_workers: int | None = None, gpu: str | None = None) -> list[Candidate]:
    """Return the settings that this machine has room for: at most a thread a core, and one GPU where there is one."""
    budget = cores.budget()
    counts = counts_up_to(min(budget, most_workers or budget))
    base = base.replace(engine="auto", cluster=None, link=None, device="cpu")
    found: list[Candidate] = []
    for workers in counts:
        asked = base.machine.threads
        threads = {asked} if asked else {budget // workers, *([1] if workers == 1 else [])}
        for each in sorted(threads, reverse=True):
            if workers * each <= budget or base.machine.oversubscribe:
                found += _settings(base.replace(workers=workers, threads=each), BATCHES)
    if gpu is not None:
        found += _settings(base.replace(workers=1, threads=None, device=gpu), DEVICE_BATCHES)
    return found


def candidates_on(cluster: Cluster, base: Experiment, *, most_workers: int | None = None) -> list[Candidate]:
    """Return the settings that a cluster has room for."""
    room = min(cluster.workers, most_workers or cluster.workers)
    base = base.replace(engine="virtual", cluster=cluster, link=None, device="cpu")
    return [one for workers in counts_up_to(room) for one in _settings(base.replace(workers=workers), BATCHES)]


def drop_dominated(priced: Iterable[tuple[Candidate, float]]) -> list[Candidate]:
    """Return the candidates without those that couple replicas more loosely and are hardly faster for it.

    Of two that differ only in how replicas are averaged, the looser one never learns more from the same samples.
    """
    listed = list(priced)

    def setting(one: Candidate) -> tuple[Any, ...]:
        return one.workers, one.threads, one.batch, one.device

    def is_dominated(one: Candidate, seconds: float) -> bool:
        return any(
            setting(one) == setting(other) and other.looseness < one.looseness and seconds > SAVING * other_seconds
            for other, other_seconds in listed
        )

    return [one for one, seconds in listed if not is_dominated(one, seconds)]


def _settings(base: Experiment, factors: Iterable[float]) -> Iterator[Candidate]:
    """Yield every batch size and every way to average for a number of workers."""
    usual = resolve_defaults(base.replace(batch_size=None)).training.samples_per_step
    sizes = {max(1, round(usual * factor)) for factor in factors} | {resolve_defaults(base).training.samples_per_step}
    for size in sorted(sizes):
        for mixing in _mixings(base):
            one = resolve_defaults(base.replace(batch_size=size, **mixing))
            try:
                validate_mixing(one)
            except ExperimentError:  # this strategy cannot be combined with the experiment's other settings
                continue
            yield Candidate(one)


def _mixings(base: Experiment) -> list[dict[str, Any]]:
    """Return the strategies and rounds to try; the experiment's own are among them.

    Rounds overlap with steps where those of the experiment do; averaged gradients never can.
    """
    division = base.division
    own = {name: getattr(division, name) for name in ("strategy", "sync_every", "average")}
    at_every_step: dict[str, Any] = {"strategy": "allreduce", "sync_every": None, "average": "auto", "overlap": False}
    if division.workers == 1:
        return [at_every_step | {"strategy_options": {}}]
    found = [own, at_every_step]
    names = ("allreduce", "butterfly") if division.workers > 2 else ("allreduce",)
    for name in names:
        found += [{"strategy": name, "sync_every": every, "average": "weights"} for every in ROUNDS]
    options = division.strategy_options
    unique: dict[str, dict[str, Any]] = {}
    for one in found:
        mine = one | {"strategy_options": options if one["strategy"] == division.strategy else {}}
        unique.setdefault(resolve_defaults(base.replace(**mine)).division.model_dump_json(), mine)
    return list(unique.values())
