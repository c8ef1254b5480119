"""Tables of a cross-validation: one line for each fold, their mean, and how the models do on the test part."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tenfold.common.part_names import PARTS
from tenfold.report.formatting import NOTHING, count, duration, metric_value, one_line, plural
from tenfold.report.tables.text_table import TextTable
from tenfold.runs import Run
from tenfold.runs.fold_name import fold_name

PART_NAMES = {"train": "training"}
MODEL_USES = {
    "best": "best model by validation",
    "average": "average of all weights",
    "vote": "vote of all models",
}
RecordedFold = dict[str, Any]
"""An entry of `folds` in the result of a cross-validation."""


def fold_tables(run: Run) -> Group:
    """Return the tables of a cross-validation for a terminal."""
    shown: list[Table | Text] = []
    if run.result.get("folds"):
        shown.append(folds_table(run).to_rich(caption=_took(run)))
        shown += [Text(line, style="red", overflow="fold") for line in failed_folds(run)]
    models = models_table(run)
    if models.rows:
        shown.append(models.to_rich())
    return Group(*(Padding(one, (0, 0, 1, 0)) for one in shown))


def folds_table(run: Run) -> TextTable:
    """Return one line for each fold, then the mean, the standard deviation and the 95% interval."""
    folds: list[RecordedFold] = run.result["folds"]
    scored = [(part, name) for name in shown_metrics(run) for part in PARTS]
    rows = [_line(fold, scored) for fold in folds]
    spread = run.result.get("spread", {})
    for word, text in (("mean", _mean), ("deviation", _deviation), ("95% interval", mean_interval)):
        if spread:
            cells = [text(name, spread.get(part, {}).get(name, {})) for part, name in scored]
            rows.append([word, "", *cells, "", "", ""])
    names = [f"{PART_NAMES.get(part, part)} {one_line(name)}" for part, name in scored]
    columns = ["fold", "run", *names, "samples", f"training, {run.clock}", "threads"]
    return TextTable(columns, rows, totals=len(rows) - len(folds))


def models_table(run: Run) -> TextTable:
    """Return how the models of the folds do on the test part, used in three ways."""
    folds, found = run.result.get("folds") or [], run.result.get("models") or {}
    scored = {key: found[key]["metrics"] for key in MODEL_USES if found.get(key, {}).get("metrics")}
    names = [name for name in shown_metrics(run) if any(name in metrics for metrics in scored.values())]
    rows = []
    for key, metrics in scored.items():
        which = f", {name_of(folds[found[key]['fold'] - 1])}" if key == "best" else ""
        rows.append([f"{MODEL_USES[key]}{which}", *(metric_value(name, metrics.get(name)) for name in names)])
    return TextTable(["on the test part", *map(one_line, names)], rows)


def failed_folds(run: Run) -> list[str]:
    """Return one line for each failed fold, with the reason."""
    folds: list[RecordedFold] = run.result.get("folds") or []
    return [
        f"{name_of(fold)}: {one_line((fold['error'] or 'no error message').splitlines()[0])}"
        for fold in folds
        if fold["status"] == "failed"
    ]


def shown_metrics(run: Run) -> list[str]:
    """Return the metrics to show; the loss only where there is no other."""
    names = list(run.result.get("spread", {}).get("validation", {})) or list(run.metrics)
    return [name for name in names if name != "loss"] or names


def name_of(fold: RecordedFold) -> str:
    """Return the name of a fold of a result."""
    return fold_name(fold["fold"], fold["repeat"], fold["node"])


def mean_interval(name: str, spread: dict[str, Any]) -> str:
    """Return the 95% interval of a mean over the folds."""
    if spread.get("low") is None or spread.get("high") is None:
        return NOTHING
    return f"{metric_value(name, spread['low'])} – {metric_value(name, spread['high'])}"


def fold_mean_note(run: Run, metric: str) -> str:
    """Return the number of folds and the 95% interval of a mean over them; empty for a run without folds."""
    if not run.result.get("folds"):
        return ""
    around = mean_interval(metric, run.result.get("spread", {}).get("validation", {}).get(metric, {}))
    finished = sum(fold["status"] == "finished" for fold in run.result["folds"])
    interval = f", 95% interval {around}" if around != NOTHING else ""
    return f"mean over {plural(finished, 'fold')}{interval}"


def _line(fold: RecordedFold, scored: Sequence[tuple[str, str]]) -> list[str]:
    number = NOTHING if fold["run"] is None else str(fold["run"])
    scores = [metric_value(name, fold["metrics"].get(part, {}).get(name)) for part, name in scored]
    samples = f"{count(fold['train_samples'])} + {count(fold['validation_samples'])}"
    trained = "failed" if fold["status"] == "failed" else duration(fold["seconds"])
    return [name_of(fold), number, *scores, samples, trained, str(fold["threads"])]


def _mean(name: str, spread: dict[str, Any]) -> str:
    return metric_value(name, spread.get("mean"))


def _deviation(name: str, spread: dict[str, Any]) -> str:
    return metric_value(name, spread.get("std"))


def _took(run: Run) -> str:
    mode = str(run.result.get("mode", "")).replace("-", " ")
    took = f"; {duration(run.seconds)} {run.clock}, training time of the busiest core"
    return mode + (took if run.seconds is not None else "")
