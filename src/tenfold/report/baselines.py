"""The recorded run of one worker that a single run is compared with."""

from dataclasses import dataclass

from tenfold.report.rows import Doubt, make_rows
from tenfold.runs import Run


@dataclass(frozen=True)
class Baseline:
    """A run of one worker, and the speedup of another run over it."""

    run: Run
    speedup: float
    doubts: tuple[Doubt, ...]
    """Why the speedup should not be trusted."""


def find_baseline(run: Run) -> Baseline | None:
    """Return the latest finished run of one worker with the same settings and clock, and the speedup over it."""
    if run.experiment.division.workers == 1 or not run.seconds or run.experiment.division.folds is not None:
        return None
    for record in reversed(run.store.records()):
        division = record["experiment"].get("division", {})
        if (
            record["problems"]
            or record["status"] != "finished"
            or division.get("workers", 1) != 1
            or division.get("folds") is not None
        ):
            continue
        other = run.other(record["id"])
        if other.problem:
            continue
        own, alone = make_rows([run, other])
        if own.speedup is not None:
            return Baseline(other, own.speedup, tuple(dict.fromkeys((*own.doubts, *alone.doubts))))
    return None
