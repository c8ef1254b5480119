"""A cross-validation as tables for a terminal: a line for each fold, and what they say together."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tenfold.report.words import NOTHING, duration, measure, plain
from tenfold.runs import Run

KIND = "crossval"
PARTS = ("train", "validation", "test")
MODELS = {"best": "the best by validation", "average": "the average of all weights", "vote": "the vote of all"}


def fold_tables(run: Run) -> Group:
    """Return a line for each fold, the mean over the folds, and how the models do on the test part."""
    tables = [folds_table(run)] if run.result.get("folds") else []
    if run.result.get("models"):
        tables.append(models_table(run))
    return Group(*(Padding(table, (0, 0, 1, 0)) for table in tables))


def folds_table(run: Run) -> Table:
    """Return a line for each fold, then the mean, the standard deviation and the interval."""
    folds: list[dict[str, Any]] = run.result.get("folds", [])
    metrics = told(run)
    table = _table(
        "fold", "run", *(f"{part} {plain(name)}" for name in metrics for part in PARTS), "training", "threads"
    )
    for place, fold in enumerate(folds):
        if fold["status"] == "failed":
            error = plain(fold["error"].splitlines()[-1]) if fold["error"] else "failed"
            table.add_row(name_of(folds, place), _run(fold), Text(error, style="red", overflow="fold"))
            continue
        scores = [measure(name, fold["metrics"][part].get(name)) for name in metrics for part in PARTS]
        table.add_row(name_of(folds, place), _run(fold), *scores, duration(fold["seconds"]), str(fold["threads"]))
    spread = run.result.get("spread", {})
    if spread:
        table.add_section()
        for word, text in (("mean", _mean), ("std", _std), ("95% interval", _interval)):
            cells = [text(name, spread.get(part, {}).get(name, {})) for name in metrics for part in PARTS]
            table.add_row(Text(word, style="bold"), "", *(Text(cell, style="bold") for cell in cells))
    took = f"; {duration(run.seconds)} measured, from the first step to the last fold's end"
    table.caption = run.result.get("mode", "").replace("-", " ") + (took if run.seconds is not None else "")
    return table


def models_table(run: Run) -> Table:
    """Return how three uses of the folds' models do on the test part, which no fold has seen."""
    table = _table("on the test part", *(plain(name) for name in told(run)))
    folds: list[dict[str, Any]] = run.result.get("folds", [])
    for key, words in MODELS.items():
        model = run.result["models"][key]
        which = f", {name_of(folds, model['fold'] - 1)}" if key == "best" else ""
        table.add_row(f"{words}{which}", *(measure(name, model["metrics"].get(name)) for name in told(run)))
    return table


def told(run: Run) -> list[str]:
    """Return the metrics to show: the loss only where there is no other."""
    names = list(run.result.get("spread", {}).get("validation", {})) or list(run.metrics)
    return [name for name in names if name != "loss"] or names


def name_of(folds: Sequence[dict[str, Any]], place: int) -> str:
    """Return a fold's name, with its repeat and its node where there are several."""
    fold = folds[place]
    node = f"node {fold['node']}, " if fold["node"] else ""
    repeat = f"repeat {fold['repeat']}, " if any(one["repeat"] > 1 for one in folds) else ""
    return f"{node}{repeat}fold {fold['fold']}"


def _mean(name: str, values: dict[str, Any]) -> str:
    return measure(name, values.get("mean"))


def _std(name: str, values: dict[str, Any]) -> str:
    return measure(name, values.get("std"))


def _interval(name: str, values: dict[str, Any]) -> str:
    if values.get("low") is None:
        return NOTHING
    return f"{measure(name, values['low'])} – {measure(name, values['high'])}"


def _run(fold: dict[str, Any]) -> str:
    return NOTHING if fold["run"] is None else str(fold["run"])


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, caption_justify="left")
    for at, name in enumerate(columns):
        table.add_column(Text(name), justify="right" if at else "left")
    return table
