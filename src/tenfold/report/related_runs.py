"""The recorded runs that a single run is compared with: its baseline of one worker, its twin, and similar ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tenfold.experiment import FIELDS
from tenfold.report import clocks
from tenfold.report.differences import CLUSTER_FIELDS, MIXING_FIELDS, comparable_fields
from tenfold.report.rows import MACHINE_FIELDS, Doubt, make_rows
from tenfold.runs import Run
from tenfold.runs.storage.store_tables import RunRecord
from tenfold.runs.store import CROSSVAL, FOLD

NOT_LEARNED = (*MIXING_FIELDS, *MACHINE_FIELDS, *CLUSTER_FIELDS, "workers", "seed")
"""Fields that may differ between a run and its baseline of one worker, which learns the same."""
TWIN = "twin"
"""The kind of both runs that `tenfold twin` makes."""


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
    for other in _recorded(run, _has_one_worker):
        own, alone = make_rows([run, other])
        if own.speedup is not None:
            doubts = tuple(dict.fromkeys((*own.doubts, *alone.doubts)))
            return Baseline(other, own.speedup, doubts, own.per_sample)
    return None


def find_single_worker(run: Run) -> Run | None:
    """Return the latest finished run of one worker that learns the same, real or virtual: the weights are the same."""
    return next((other for other in _recorded(run, _has_one_worker) if _agree(run, other, NOT_LEARNED)), None)


def find_twin(run: Run) -> Run | None:
    """Return the measured run that `tenfold twin` made before this virtual one; None where there is none."""
    if run.kind != TWIN or run.clock != clocks.PREDICTED:
        return None
    for other in _recorded(run, lambda record: record["id"] < run.id and record["kind"] == TWIN):
        if other.clock == clocks.MEASURED and _agree(run, other, ("engine", *CLUSTER_FIELDS)):
            return other
    return None


def similar_runs(run: Run) -> list[RunRecord]:
    """Return the other runs of the same model and data, the latest first; none for a fold."""
    if run.kind == FOLD:
        return []
    wanted = _subject(run.recorded_fields)
    records = (record for record in reversed(run.store.records()) if record["id"] != run.id and record["kind"] != FOLD)
    return [record for record in records if not record["problems"] and _subject(record["experiment"]) == wanted]


def choose_other(run: Run, baseline: Baseline | None, similar: list[RunRecord]) -> tuple[Run, str] | None:
    """Return the run that a run is compared with first, and what it is: its baseline, the one before it, or another."""
    if baseline is not None:
        return baseline.run, "one worker, its baseline"
    finished = [record for record in similar if record["status"] == "finished"]
    alike = [record for record in finished if (record["kind"] == CROSSVAL) == (run.kind == CROSSVAL)]
    for number in sorted((record["id"] for record in alike), key=lambda number: (number > run.id, -number)):
        other = run.other(number)
        if not other.problem:
            return other, f"the {'previous' if number < run.id else 'latest'} run of this model and data"
    return None


def _recorded(run: Run, wanted: Callable[[RunRecord], bool]) -> Iterator[Run]:
    """Yield the runs of the same store whose records are wanted and can be read, the latest first."""
    for record in reversed(run.store.records()):
        if not record["problems"] and wanted(record) and not (other := run.other(record["id"])).problem:
            yield other


def _has_one_worker(record: RunRecord) -> bool:
    """Return whether a run was trained by one worker to the end; a fold learns from a part of the data only."""
    division = record["experiment"].get("division", {})
    one_model = record["kind"] != FOLD and division.get("folds") is None
    return record["status"] == "finished" and division.get("workers", 1) == 1 and one_model


def _agree(run: Run, other: Run, except_for: Sequence[str]) -> bool:
    """Return whether two runs have the same values in all fields but some."""
    ours, theirs = comparable_fields(run.experiment), comparable_fields(other.experiment)
    return all(ours[name] == theirs[name] for name in FIELDS if name not in except_for)


def _subject(fields: dict[str, Any]) -> list[Any]:
    """Return the names of the model and of the data."""
    return [(fields.get(section) or {}).get("name") for section in ("model", "data")]
