"""Tables of runs for a terminal."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tenfold.common.files import short_path
from tenfold.experiment import FIELDS, SECTIONS
from tenfold.report import clocks, summary
from tenfold.report.differences import changed_fields, describe_difference, differing_fields
from tenfold.report.formatting import (
    CROSSVAL_TIME,
    NOTHING,
    ago,
    count,
    date_time,
    duration,
    field_value,
    metric_value,
    one_line,
)
from tenfold.report.scores import main_metric
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL

MOST_METRICS = 2
"""The list of runs has columns for at most this many metrics."""
STATUS_STYLES = {"finished": "green", "running": "cyan", "failed": "bold red", "interrupted": "yellow"}


def run_summary_table(run: Run) -> Table:
    """Return the results of a run, as `tenfold train` prints them."""
    table = _grid()
    table.add_row(f"run {run.id}", Text.assemble((one_line(run.title), "bold"), "  ", _status(run)))
    for name, text in summary.result_rows(run) if run.readable else summary.score_rows(run):
        table.add_row(name, Text(text, style="bold" if name.endswith("accuracy") else ""))
    if run.tags:
        table.add_row("tags", Text(" ".join(run.tags), style="magenta"))
    if run.note:
        table.add_row("note", Text(one_line(run.note)))
    if run.problem:
        table.add_row("problem", Text(one_line(run.problem), style="yellow"))
    if ending := summary.describe_end(run):
        table.add_row(run.status, _styled(run, "\n".join(one_line(line) for line in ending.splitlines())))
    table.add_row("folder", Text(str(short_path(run.path)), overflow="fold"))
    return table


def evaluation_table(run: Run, data: str | None, part: str, samples: int, metrics: Mapping[str, float]) -> Table:
    """Return the metrics of a run's model on some data, as `tenfold evaluate` prints them."""
    table = _grid()
    table.add_row(f"run {run.id}", Text(one_line(run.title), style="bold"))
    whose = f"all of {data}" if part == "all" else f"{part} part of {data}" if data else f"its {part} part"
    table.add_row("on", Text(f"{one_line(whose)}, {count(samples)} samples"))
    for name, value in metrics.items():
        table.add_row(one_line(name), Text(metric_value(name, value), style="bold"))
    return table


def runs_table(runs: Sequence[Run], *, now: float | None = None) -> Table:
    """Return one line for each run, with the fields that differ, as `tenfold runs` prints them."""
    measured = {run.id: _final_metrics(run) for run in runs}
    found = dict.fromkeys(name for one in measured.values() if (name := main_metric(one)))
    scores = list(found)[:MOST_METRICS] or ["accuracy"]
    table = _table(
        "run", "title and differences", "status", "when", "epochs", *(one_line(name) for name in scores), "training"
    )
    _right(table, 0, *range(4, len(table.columns)))
    differing = differing_fields([run for run in runs if run.readable])
    for run in runs:
        table.add_row(
            str(run.id),
            _titled(run, differing),
            _status(run),
            ago(run.created, now),
            _epochs(run),
            *(metric_value(name, measured[run.id].get(name)) for name in scores),
            _training(run),
        )
    unless = ", unless marked as predicted" if any(run.clock == clocks.PREDICTED for run in runs) else ""
    table.caption = f"training: measured{unless}, without startup, evaluation and saving" if runs else "no runs yet"
    if any(run.kind == CROSSVAL for run in runs):
        table.caption += f"; {CROSSVAL_TIME}"
    for run in runs:
        if run.problem:
            table.caption += f"\nrun {run.id}: {one_line(run.problem)}"
    return table


def _final_metrics(run: Run) -> dict[str, float]:
    """Return the final metrics of a run; for a fold, those of its validation part."""
    found: dict[str, float] = run.result.get("crossval", {}).get("metrics", {}).get("validation") or run.metrics
    return found


def show_tables(run: Run) -> Group:
    """Return all tables about one run, as `tenfold show` prints them."""
    tables = [run_summary_table(run), experiment_table(run) if run.readable else recorded_table(run)]
    if run.history:
        tables.append(history_table(run))
    if summary.times_by_kind(run):
        tables.append(times_table(run))
    return Group(*(Padding(table, (0, 0, 1, 0)) for table in (*tables, origin_table(run))))


def experiment_table(run: Run) -> Table:
    """Return every field: first those that differ from the defaults, then the rest by section."""
    table = _grid(title="experiment")
    changed = changed_fields(run.experiment)
    for key, value in changed.items():
        table.add_row(key, Text(field_value(value), style="bold", overflow="fold"))
    table.add_row("defaults", Text("all other fields" if changed else "all fields"))
    flat = run.experiment.flat()
    for section in SECTIONS:
        rest = (
            f"{key}={field_value(flat[key])}"
            for key, (home, _) in FIELDS.items()
            if home == section and key not in changed
        )
        table.add_row(f"  {section}", Text("  ".join(rest), style="dim"))
    return table


def recorded_table(run: Run) -> Table:
    """Return the fields of an experiment that this version cannot read, as they were recorded."""
    table = _grid(title="experiment, as recorded")
    for name, fields in run.recorded_fields.items():
        table.add_row(one_line(name), Text(field_value(fields), overflow="fold"))
    return table


def history_table(run: Run) -> Table:
    """Return one line for each epoch."""
    names = history_columns(run)
    table = _table(
        "epoch", "step", f"training, {run.clock}", *(one_line(name.replace("_", " ")) for name in names), title="epochs"
    )
    _right(table, *range(len(table.columns)))
    for row in run.history:
        scores = (metric_value(name, row.get(name)) for name in names)
        table.add_row(count(row["epoch"]), count(row.get("step")), duration(row.get("seconds")), *scores)
    return table


def history_columns(run: Run) -> list[str]:
    """Return the names of the metrics of all epochs, such as train_loss and test_accuracy."""
    names = dict.fromkeys(name for row in run.history for name in row)
    return [name for name in names if name not in ("epoch", "step", "seconds")]


def times_table(run: Run) -> Table:
    """Return a table of the time by kind."""
    times = summary.times_by_kind(run)
    total = sum(times.values())
    table = _table("spent on", "time", "share", title=f"time, {run.clock}")
    _right(table, 1, 2)
    for kind, seconds in times.items():
        table.add_row(summary.KIND_NAMES.get(kind, kind), duration(seconds), f"{seconds / total:.1%}")
    return table


def origin_table(run: Run) -> Table:
    """Return a table of when the run began, its command, the version of the code, and its files."""
    table = _grid(title="origin")
    ended = f", ended {date_time(run.ended)}" if run.ended is not None else ""
    table.add_row("began", f"{date_time(run.created)}{ended}")
    for key in ("command", "code"):
        if run.facts.get(key):
            table.add_row(key, Text(one_line(str(run.facts[key])), overflow="fold"))
    files = sorted(path.name for path in run.path.iterdir()) if run.path.is_dir() else []
    table.add_row("files", Text(", ".join(files) or "none", overflow="fold"))
    return table


def shards_table(run: Run) -> Table:
    """Return how the training samples were divided among the replicas, with classes where there are few."""
    dealt = run.facts.get("shards", {})
    samples, classes = dealt.get("samples", []), dealt.get("classes")
    labels = [f"class {label}" for label in range(len(classes[0]))] if classes else []
    table = _table("replica", "samples", *labels, title=f"shards, {dealt.get('kind', 'not recorded')}")
    _right(table, *range(len(table.columns)))
    for replica, number in enumerate(samples):
        table.add_row(str(replica), count(number), *(count(one) for one in (classes[replica] if classes else ())))
    total = f"{count(sum(samples))} samples"
    table.caption = f"{total}, each exactly once" if dealt.get("once") else f"{total}; NOT each exactly once"
    return table


def _grid(title: str | None = None) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), **_headings(title))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    return table


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, **_headings(title))
    for at, name in enumerate(columns):
        table.add_column(Text(name), no_wrap=at != 1)  # titles may wrap, numbers never
    return table


def _headings(title: str | None) -> dict[str, Any]:
    return {"title": title, "title_justify": "left", "title_style": "bold", "caption_justify": "left"}


def _right(table: Table, *columns: int) -> None:
    for column in columns:
        table.columns[column].justify = "right"


def _titled(run: Run, differing: Collection[str]) -> Text:
    difference = describe_difference(run, differing) if run.readable else "cannot be read by this version"
    parts = ("└ " if run.kind == "fold" else "", one_line(run.title), "  ", (difference, "dim"))
    tags = "".join(f"  #{tag}" for tag in run.tags)
    return Text.assemble(*parts, (tags if difference else tags[2:], "magenta"), overflow="fold")


def _training(run: Run) -> str:
    """Return the training time, marked where it is predicted."""
    clock = f" {run.clock}" if run.clock == clocks.PREDICTED and run.seconds is not None else ""
    return f"{duration(run.seconds)}{clock}"


def _status(run: Run) -> Text:
    return _styled(run, run.status)


def _styled(run: Run, text: str) -> Text:
    return Text(text, style=STATUS_STYLES.get(run.status, ""))


def _epochs(run: Run) -> str:
    done = run.result.get("epochs")
    if not run.readable:
        return NOTHING if done is None else str(done)
    wanted = run.experiment.training.epochs
    return str(wanted) if done == wanted else f"{NOTHING if done is None else done}/{wanted}"
