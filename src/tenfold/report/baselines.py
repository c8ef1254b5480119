"""The recorded run of one worker that a single run is compared with."""

from tenfold.report.rows import make_rows
from tenfold.runs import Run


def find_baseline(run: Run) -> tuple[Run, float] | None:
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
        speedup = make_rows([run, other])[0].speedup if other.clock == run.clock else None
        if speedup is not None:
            return other, speedup
    return None
