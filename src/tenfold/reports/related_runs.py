"""The recorded runs that a single run is compared with: its baseline of one worker, its twin, and similar ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tenfold.common.metric_traits import loss_last, main_metric
from tenfold.experiment import FIELDS
from tenfold.reports import summary
from tenfold.reports.comparison_rows import MACHINE_FIELDS, Doubt, make_rows
from tenfold.reports.differences import CLUSTER_FIELDS, MIXING_FIELDS, comparable_fields, differing_fields
from tenfold.reports.formatting import NOTHING, count, duration, field_value, metric_value, one_line, plural
from tenfold.runs import Run
from tenfold.runs.run import as_asked
from tenfold.runs.store import CROSSVAL, FOLD, MEMBERS, SWEEP
from tenfold.runs.tables import RunRecord

NOT_LEARNED = (*MIXING_FIELDS, *MACHINE_FIELDS, *CLUSTER_FIELDS, "workers", "seed")
"""Fields that may differ between a run and its baseline of one worker, because they do not affect learning."""
TWIN = "twin"
"""The kind of both runs that `tenfold twin` makes."""


@dataclass(frozen=True)
class Baseline:
    """A run of one worker, and the speedup of another run over it."""

    run: Run
    speedup: float
    doubts: tuple[Doubt, ...]
    """Reasons not to trust the speedup."""
    per_sample: bool = False
    """Whether it compares times per sample, because one of the runs stopped earlier."""


def find_baseline(run: Run) -> Baseline | None:
    """Return the latest finished run of one worker with the same settings and clock, and the speedup over it."""
    one_model = run.kind != SWEEP and run.experiment.parallel.folds is None
    if run.experiment.parallel.workers == 1 or not run.seconds or not one_model:
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
    """Return the measured run that `tenfold twin` made before this virtual run, if any."""
    if run.kind != TWIN or run.clock != summary.PREDICTED:
        return None
    for other in _recorded(run, lambda record: record["id"] < run.id and record["kind"] == TWIN):
        if other.clock == summary.MEASURED and _agree(run, other, ("engine", *CLUSTER_FIELDS)):
            return other
    return None


def similar_runs(run: Run) -> list[RunRecord]:
    """Return the other runs of the same model and data, the latest first; none for a fold or a sweep."""
    if run.kind in (FOLD, SWEEP):
        return []
    wanted = _subject(run.recorded_fields)
    left_out = (*MEMBERS, SWEEP)
    records = (
        record for record in reversed(run.store.records()) if record["id"] != run.id and record["kind"] not in left_out
    )
    return [record for record in records if not record["problems"] and _subject(record["experiment"]) == wanted]


def choose_other(run: Run, baseline: Baseline | None, similar: list[RunRecord]) -> tuple[Run, str] | None:
    """Return the run that a run is compared with first, and its role: baseline, previous or other run."""
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
    """Return whether one worker finished training a run; folds are excluded because they train on part of the data."""
    parallel = record["experiment"].get("parallel", {})
    one_model = record["kind"] not in (FOLD, SWEEP) and parallel.get("folds") is None
    return record["status"] == "finished" and parallel.get("workers", 1) == 1 and one_model


def _agree(run: Run, other: Run, except_for: Sequence[str]) -> bool:
    ours, theirs = (comparable_fields(as_asked(each.experiment, each.metadata)) for each in (run, other))
    return all(ours[name] == theirs[name] for name in FIELDS if name not in except_for)


def _subject(fields: dict[str, Any]) -> list[Any]:
    return [(fields.get(section) or {}).get("name") for section in ("model", "data")]


MOST_OFFERED = 50


def compare_runs(run: Run, other: Run, what: str = "") -> dict[str, Any]:
    """Return a table of two runs: metrics, times, and the fields in which they differ, with the values of both."""
    both = (run, other)
    names = list(dict.fromkeys(name for item in both for name in loss_last(item.metrics)))
    parts = list({summary.evaluated_part(item) for item in both if item.metrics})
    same = parts[0] if len(parts) == 1 else ""
    scores = [(f"{same} {one_line(name)}".strip(), *(_score(item, name, same) for item in both)) for name in names]
    speeds = [item.result.get("samples_per_second") for item in both]
    times = [("training time", *map(summary.training_time, both)), ("samples/s", *map(count, speeds))]
    if any(item.seconds_to_target is not None for item in both):
        target = [duration(item.seconds_to_target) for item in both]
        times.insert(1, ("time to the target", *target))
    differing = differing_fields(both)
    fields = [(name, *map(field_value, values)) for name, values in differing.items()]
    return {
        "run": run.id,
        "other": other.id,
        "what": what,
        "results": [row for row in scores + times if set(row[1:]) != {NOTHING}],
        "fields": fields,
    }


def offered_runs(similar: list[RunRecord], chosen: int | None) -> list[tuple[int, str]]:
    """Return the runs to choose from with their labels, including the chosen run."""
    kept = [record for at, record in enumerate(similar) if at < MOST_OFFERED or record["id"] == chosen]
    return [(record["id"], _label(record)) for record in kept]


def _label(record: RunRecord) -> str:
    workers = record["experiment"].get("parallel", {}).get("workers", 1)
    metrics = record["result"].get("metrics") or {}
    name = main_metric(name for name, value in metrics.items() if value is not None)
    score = f", {one_line(name)} {metric_value(name, metrics[name])}" if name is not None else ""
    state = "" if record["status"] == "finished" else f", {record['status']}"
    return f"run {record['id']}: {one_line(record['title'])}, {plural(workers, 'worker')}{score}{state}"


def _score(run: Run, name: str, same_part: str) -> str:
    """Return the value of a metric, and the part on which it was measured if the two runs used different parts."""
    value = run.metrics.get(name)
    return metric_value(name, value) + ("" if same_part or value is None else f" {summary.evaluated_part(run)}")
