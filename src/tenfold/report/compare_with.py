"""One run next to another: the fields in which they differ, how good they are and how long they took."""

from typing import Any

from tenfold.common.metric_table import loss_last, main_metric
from tenfold.report import clocks, summary
from tenfold.report.differences import differing_fields
from tenfold.report.formatting import NOTHING, count, duration, field_value, metric_value, one_line, plural
from tenfold.runs import Run
from tenfold.runs.storage.store_tables import RunRecord

MOST_OFFERED = 50


def compare_runs(run: Run, other: Run, what: str = "") -> dict[str, Any]:
    """Return a table of two runs: metrics, times, and the fields in which they differ, with the values of both."""
    both = (run, other)
    names = list(dict.fromkeys(name for one in both for name in loss_last(one.metrics)))
    parts = list({summary.evaluated_part(one) for one in both if one.metrics})
    same = parts[0] if len(parts) == 1 else ""
    scores = [(f"{same} {one_line(name)}".strip(), *(_score(one, name, same) for one in both)) for name in names]
    speeds = [one.result.get("samples_per_second") for one in both]
    times = [("training time", *map(clocks.training_time, both)), ("samples/s", *map(count, speeds))]
    if any(one.seconds_to_target is not None for one in both):
        target = [duration(one.seconds_to_target) for one in both]
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
    """Return the runs to choose from with their labels, the one that is chosen among them."""
    kept = [record for at, record in enumerate(similar) if at < MOST_OFFERED or record["id"] == chosen]
    return [(record["id"], _label(record)) for record in kept]


def _label(record: RunRecord) -> str:
    workers = record["experiment"].get("division", {}).get("workers", 1)
    metrics = record["result"].get("metrics") or {}
    name = main_metric(name for name, value in metrics.items() if value is not None)
    score = f", {one_line(name)} {metric_value(name, metrics[name])}" if name is not None else ""
    state = "" if record["status"] == "finished" else f", {record['status']}"
    return f"run {record['id']}: {one_line(record['title'])}, {plural(workers, 'worker')}{score}{state}"


def _score(run: Run, name: str, same_part: str) -> str:
    """Return the value of a metric, and on which part it was measured where that is not the same for both runs."""
    value = run.metrics.get(name)
    return metric_value(name, value) + ("" if same_part or value is None else f" {summary.evaluated_part(run)}")
