"""A cross-validation as tables, alike on a terminal and on a page: a line for each fold, and what they say together."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tenfold.report.formatting import NOTHING, count, duration, measure, plain
from tenfold.runs import Run

PARTS = ("train", "validation", "test")
NAMES = {"train": "training"}
MODELS = {"best": "the best by validation", "average": "the average of all weights", "vote": "the vote of all"}
Fold = dict[str, Any]


def fold_tables(run: Run) -> Group:
    """Return for a terminal a line for each fold, the mean over the folds, and how the models do on the test part."""
    shown: list[Table | Text] = []
    if folds := run.result.get("folds"):
        shown.append(_table(folds_table(run), lines=len(folds), caption=_took(run)))
        shown += [Text(line, style="red", overflow="fold") for line in failures(run)]
    models = models_table(run)
    if models["rows"]:
        shown.append(_table(models, lines=len(models["rows"])))
    return Group(*(Padding(one, (0, 0, 1, 0)) for one in shown))


def folds_table(run: Run) -> dict[str, Any]:
    """Return a line for each fold, then the mean, the standard deviation and the interval."""
    folds: list[Fold] = run.result["folds"]
    scored = [(part, name) for name in told(run) for part in PARTS]
    rows = [_line(folds, place, scored) for place in range(len(folds))]
    spread = run.result.get("spread", {})
    for word, text in (("mean", _mean), ("deviation", _deviation), ("95% interval", bounds)):
        if spread:
            cells = [text(name, spread.get(part, {}).get(name, {})) for part, name in scored]
            rows.append([word, "", *cells, "", "", ""])
    names = [f"{NAMES.get(part, part)} {plain(name)}" for part, name in scored]
    return {"columns": ["fold", "run", *names, "samples", f"training, {run.clock}", "threads"], "rows": rows}


def models_table(run: Run) -> dict[str, Any]:
    """Return how three uses of the folds' models do on the test part, which no fold has seen."""
    folds, found = run.result.get("folds") or [], run.result.get("models") or {}
    scored = {key: found[key]["metrics"] for key in MODELS if found.get(key, {}).get("metrics")}
    names = [name for name in told(run) if any(name in metrics for metrics in scored.values())]
    rows = []
    for key, metrics in scored.items():
        which = f", {name_of(folds, found[key]['fold'] - 1)}" if key == "best" else ""
        rows.append([f"{MODELS[key]}{which}", *(measure(name, metrics.get(name)) for name in names)])
    return {"columns": ["on the test part", *map(plain, names)], "rows": rows}


def failures(run: Run) -> list[str]:
    """Return which folds failed and why, a line each."""
    folds: list[Fold] = run.result.get("folds") or []
    return [
        f"{name_of(folds, place)}: {plain((fold['error'].splitlines() or ['without having said why'])[-1])}"
        for place, fold in enumerate(folds)
        if fold["status"] == "failed"
    ]


def told(run: Run) -> list[str]:
    """Return the metrics to show: the loss only where there is no other."""
    names = list(run.result.get("spread", {}).get("validation", {})) or list(run.metrics)
    return [name for name in names if name != "loss"] or names


def name_of(folds: Sequence[Fold], place: int) -> str:
    """Return a fold's name, with its repeat and its node where there are several."""
    fold = folds[place]
    node = f"node {fold['node']}, " if fold["node"] else ""
    repeat = f"repeat {fold['repeat']}, " if any(one["repeat"] > 1 for one in folds) else ""
    return f"{node}{repeat}fold {fold['fold']}"


def bounds(name: str, spread: dict[str, Any]) -> str:
    """Return the interval of a mean over the folds."""
    if spread.get("low") is None or spread.get("high") is None:
        return NOTHING
    return f"{measure(name, spread['low'])} – {measure(name, spread['high'])}"


def _line(folds: Sequence[Fold], place: int, scored: Sequence[tuple[str, str]]) -> list[str]:
    fold = folds[place]
    number = NOTHING if fold["run"] is None else str(fold["run"])
    scores = [measure(name, fold["metrics"].get(part, {}).get(name)) for part, name in scored]
    samples = f"{count(fold['train_samples'])} + {count(fold['validation_samples'])}"
    trained = "failed" if fold["status"] == "failed" else duration(fold["seconds"])
    return [name_of(folds, place), number, *scores, samples, trained, str(fold["threads"])]


def _mean(name: str, spread: dict[str, Any]) -> str:
    return measure(name, spread.get("mean"))


def _deviation(name: str, spread: dict[str, Any]) -> str:
    return measure(name, spread.get("std"))


def _took(run: Run) -> str:
    mode = str(run.result.get("mode", "")).replace("-", " ")
    took = f"; {duration(run.seconds)} {run.clock}, from the first step to the last fold's end"
    return mode + (took if run.seconds is not None else "")


def _table(content: dict[str, Any], lines: int, caption: str | None = None) -> Table:
    """Return a table for a terminal, whose rows after the first lines are what these come to."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=caption, caption_justify="left")
    for at, name in enumerate(content["columns"]):
        table.add_column(Text(name), justify="right" if at else "left")
    for at, row in enumerate(content["rows"]):
        if at == lines:
            table.add_section()
        table.add_row(*(Text(cell, style="bold" if at >= lines else "") for cell in row))
    return table
