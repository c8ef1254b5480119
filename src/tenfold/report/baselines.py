"""The recorded runs of one worker that a single run is compared with."""

from collections.abc import Iterator
from dataclasses import dataclass

from tenfold.experiment import FIELDS
from tenfold.report.differences import CLUSTER_FIELDS, MIXING_FIELDS, comparable_fields
from tenfold.report.rows import MACHINE_FIELDS, Doubt, make_rows
from tenfold.runs import Run

NOT_LEARNED = (*MIXING_FIELDS, *MACHINE_FIELDS, *CLUSTER_FIELDS, "workers", "seed")
"""Fields that may differ between a run and its baseline of one worker, which learns the same."""


@dataclass(frozen=True)
class Baseline:
    """A run of one worker, and the speedup of another run over it."""

    run: Run
    speedup: float
    doubts: tuple[Doubt, ...]
    """Why the speedup should not be trusted."""
    per_sample: bool = False
    """Whether it compares times per sample, as one of the runs stopped before the other."""


def find_baseline(run: Run) -> Baseline | None:
    """Return the latest finished run of one worker with the same settings and clock, and the speedup over it."""
    if run.experiment.division.workers == 1 or not run.seconds or run.experiment.division.folds is not None:
        return None
    for other in _single_workers(run):
        own, alone = make_rows([run, other])
        if own.speedup is not None:
            doubts = tuple(dict.fromkeys((*own.doubts, *alone.doubts)))
            return Baseline(other, own.speedup, doubts, own.per_sample)
    return None


def find_single_worker(run: Run) -> Run | None:
    """Return the latest finished run of one worker that learns the same, real or virtual: the weights are the same."""
    ours = comparable_fields(run.experiment)
    for other in _single_workers(run):
        theirs = comparable_fields(other.experiment)
        if all(theirs[name] == ours[name] for name in FIELDS if name not in NOT_LEARNED):
            return other
    return None


def _single_workers(run: Run) -> Iterator[Run]:
    """Yield the finished runs of one worker, the latest first."""
    for record in reversed(run.store.records()):
        division = record["experiment"].get("division", {})
        if (
            not record["problems"]
            and record["status"] == "finished"
            and division.get("workers", 1) == 1
            and division.get("folds") is None
            and not (other := run.other(record["id"])).problem
        ):
            yield other
