"""Tables of runs, shards and folds, in the forms that pages, terminals and Markdown need."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tenfold.common import PARTS
from tenfold.common.files import short_path
from tenfold.common.metric_traits import main_metric
from tenfold.experiment import FIELDS, SECTIONS
from tenfold.reports import summary
from tenfold.reports.differences import changed_fields, describe_difference, differing_fields
from tenfold.reports.formatting import (
    CROSSVAL_TIME,
    NOTHING,
    ago,
    byte_size,
    count,
    date_time,
    duration,
    field_value,
    metric_value,
    one_line,
    plural,
    short_title,
)
from tenfold.reports.tables import TextTable
from tenfold.runs import Run
from tenfold.runs.run import fold_name
from tenfold.runs.store import CROSSVAL, MEMBERS, SCRIPT

if TYPE_CHECKING:
    from tenfold.executors.submitting import JobUnderWay


MOST_METRICS = 2
"""The list of runs has columns for at most this many metrics."""
TITLE = "title and differences"
LEFT_OUT = ("epochs", "when", "training", "status")
"""Columns of the list of runs that are omitted on a narrow terminal, in this order; metrics are omitted next."""
LEAST_TITLE = 24
"""Minimum width of folded titles, in characters; other columns are omitted before titles get narrower."""
STATUS_STYLES = {"finished": "green", "running": "cyan", "failed": "bold red", "interrupted": "yellow"}


def run_summary_table(run: Run) -> Table:
    """Return the results of a run, as `tenfold train` prints them."""
    table = _grid()
    table.add_row(f"run {run.id}", Text.assemble((short_title(run.title), "bold"), "  ", _styled(run, run.status)))
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
    table.add_row(f"run {run.id}", Text(short_title(run.title), style="bold"))
    whose = f"all of {data}" if part == "all" else f"{part} part of {data}" if data else f"its {part} part"
    table.add_row("on", Text(f"{one_line(whose)}, {count(samples)} samples"))
    for name, value in metrics.items():
        table.add_row(one_line(name), Text(metric_value(name, value), style="bold"))
    return table


class RunsTable:
    """One line for each run, with the fields that differ, as `tenfold runs` prints them."""

    def __init__(self, runs: Sequence[Run], now: float | None = None) -> None:
        self._runs, self._now = runs, now

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._columns()
        for name in (*LEFT_OUT, *(column.name for column in reversed(columns[2:]))):
            if _width(columns) > options.max_width:
                columns = [column for column in columns if column.name != name]
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in columns:
            least = None if column.name == TITLE else _widest(column)
            justify: Literal["left", "right"] = "left" if column.name in (TITLE, "status", "when") else "right"
            table.add_column(Text(column.name), justify=justify, no_wrap=column.name != TITLE, min_width=least)
        for cells in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*cells)
        yield table
        yield Text(self._caption(), style="dim italic")

    def _columns(self) -> "list[_Column]":
        runs = self._runs
        measured: dict[int, dict[str, float]] = {  # for a fold, the metrics on its validation part
            run.id: run.result.get("crossval", {}).get("metrics", {}).get("validation") or run.metrics for run in runs
        }
        names = dict.fromkeys(name for measurement in measured.values() if (name := main_metric(measurement)))
        scores = list(names)[:MOST_METRICS] or ["accuracy"]
        differing = differing_fields([run for run in runs if run.readable])
        return [
            _Column("run", [Text(str(run.id)) for run in runs]),
            _Column(TITLE, [_titled(run, differing) for run in runs]),
            _Column("status", [_styled(run, run.status) for run in runs]),
            _Column("when", [Text(ago(run.created, self._now)) for run in runs]),
            _Column("epochs", [Text(_epochs(run)) for run in runs]),
            *(
                _Column(one_line(name), [Text(metric_value(name, measured[run.id].get(name))) for run in runs])
                for name in scores
            ),
            _Column("training", [Text(_training(run)) for run in runs]),
        ]

    def _caption(self) -> str:
        runs = self._runs
        unless = ", unless marked as predicted" if any(run.clock == summary.PREDICTED for run in runs) else ""
        caption = f"training: measured{unless}, without startup, evaluation and saving" if runs else "no runs yet"
        if any(run.kind == CROSSVAL for run in runs):
            caption += f"; {CROSSVAL_TIME}"
        problems = (f"\nrun {run.id}: {one_line(run.problem)}" for run in runs if run.problem)
        return caption + "".join(problems)


class _Column(NamedTuple):
    name: str
    cells: list[Text]


def _widest(column: _Column) -> int:
    return max(len(column.name), *(len(cell) for cell in column.cells), 0)


def _width(columns: Sequence[_Column]) -> int:
    """Return the width of a table in characters; long titles are folded."""
    widths = [min(_widest(column), LEAST_TITLE) if column.name == TITLE else _widest(column) for column in columns]
    return sum(widths) + 2 * (len(columns) - 1)


def jobs_table(jobs: "Sequence[JobUnderWay]") -> Table:
    rows = [
        (one_line(job.label), str(job.run or ""), job.executor, job.state, one_line(job.node), f"{job.done:.0%}")
        for job in jobs
    ]
    return TextTable(("job", "run", "on", "state", "node", "done"), rows, title="jobs under way").to_rich(words=5)


def show_tables(run: Run) -> Group:
    """Return all tables about one run, as `tenfold show` prints them."""
    tables = [run_summary_table(run), experiment_table(run) if run.readable else recorded_table(run)]
    if run.history:
        tables.append(epochs_table(run).to_rich(words=0))
    tables += [table.to_rich() for table in (*script_tables(run), times_table(run)) if table.rows]
    return Group(*(Padding(table, (0, 0, 1, 0)) for table in (*tables, origin_table(run))))


def experiment_table(run: Run) -> Table:
    """Return the fields that differ from the defaults, then the others by section; unset fields are omitted."""
    table = _grid(title="experiment")
    changed = changed_fields(run.experiment)
    for key, value in changed.items():
        table.add_row(key, Text(field_value(value), style="bold", overflow="fold"))
    if run.kind == SCRIPT:  # all other fields are the script's own
        return table
    table.add_row("defaults", Text("all other fields" if changed else "all fields"))
    flat = run.experiment.flat()
    for section in SECTIONS:
        rest = [
            f"{key}={field_value(flat[key])}"
            for key, (home, _) in FIELDS.items()
            if home == section and key not in changed and flat[key] not in (None, {}, [])
        ]
        if rest:
            table.add_row(f"  {section}", Text("  ".join(rest), style="dim"))
    return table


def recorded_table(run: Run) -> Table:
    table = _grid(title="experiment, as recorded")
    for name, fields in run.recorded_fields.items():
        table.add_row(one_line(name), Text(field_value(fields), overflow="fold"))
    return table


def epochs_table(run: Run) -> TextTable:
    measured = dict.fromkeys(name for row in run.history for name in row)
    names = [name for name in measured if name not in ("epoch", "step", "seconds")]
    headings = (one_line(name.replace("_", " ")) for name in names)
    rows = [
        [count(row["epoch"]), count(row.get("step")), duration(row.get("seconds"))]
        + [metric_value(name, row.get(name)) for name in names]
        for row in run.history
    ]
    return TextTable(["epoch", "step", f"training, {run.clock}", *headings], rows, title="epochs")


MOST_WORKERS = 8
"""Up to this many workers get a column each; for more, the mean and the longest time are shown."""


def times_table(run: Run) -> TextTable:
    """Return a table of the time by kind: the mean over the workers, and each of them."""
    times = summary.times_by_kind(run)
    total = sum(times.values())
    each = summary.times_by_worker(run) if times and run.result.get("workers", 1) > 1 else []
    few = len(each) <= MOST_WORKERS
    names = [f"worker {worker}" for worker in range(len(each))] if few else ["longest"]
    rows = []
    for kind, seconds in times.items():
        own = [worker.get(kind, 0.0) for worker in each]
        shown = own if few else [max(own)]
        cells = [duration(seconds), f"{seconds / total:.1%}", *map(duration, shown)]
        rows.append([summary.KIND_NAMES.get(kind, kind), *cells])
    return TextTable(["spent on", "mean" if each else "time", "share", *names], rows, title=f"time, {run.clock}")


def script_tables(run: Run) -> list[TextTable]:
    """Return the collective operations of a simulated script, as means over its ranks, and the times of each rank."""
    operations = [
        [
            *(name, count(round(times["count"])), byte_size(round(times["nbytes"] / max(1, times["count"])))),
            *(duration(times[key]) for key in ("seconds", "exposed")),
            f"{times['exposed'] / run.seconds:.1%}" if run.seconds else "",
        ]
        for name, times in (run.result.get("operations") or {}).items()
    ]
    ranks = [
        [str(rank), *(duration(times[kind]) for kind in ("compute", "wait", "communicate"))]
        for rank, times in enumerate(run.result.get("ranks") or [])
    ]
    columns = ["operation", "times", "bytes each", "on the links", "not overlapped", "share of the time"]
    tables = [
        TextTable(columns, operations, title=f"collective operations, {run.clock}, mean of the ranks"),
        TextTable(["rank", "compute", "waiting", "communication"], ranks, title=f"ranks, {run.clock}"),
    ]
    return [table for table in tables if table.rows]


def origin_table(run: Run) -> Table:
    table = _grid(title="origin")
    ended = f", ended {date_time(run.ended)}" if run.ended is not None else ""
    table.add_row("began", f"{date_time(run.created)}{ended}")
    for key in ("command", "code"):
        if run.metadata.get(key):
            table.add_row(key, Text(one_line(str(run.metadata[key])), overflow="fold"))
    files = sorted(path.name for path in run.path.iterdir()) if run.path.is_dir() else []
    table.add_row("files", Text(", ".join(files) or "none", overflow="fold"))
    return table


def shards_table(run: Run) -> Table:
    """Return a table of the training samples of each replica, by class if there are only a few classes."""
    shards = run.metadata.get("shards", {})
    samples, classes = shards.get("samples", []), shards.get("classes")
    labels = [f"class {label}" for label in range(len(classes[0]))] if classes else []
    rows = [
        [str(replica), count(number), *map(count, classes[replica] if classes else ())]
        for replica, number in enumerate(samples)
    ]
    total = f"{count(sum(samples))} samples"
    caption = f"{total}, each exactly once" if shards.get("once") else f"{total}; NOT each exactly once"
    if shards.get("once", False) is None:
        caption = f"{total} of a stream in each epoch"
    table = TextTable(["replica", "samples", *labels], rows, title=f"shards, {shards.get('kind', 'not recorded')}")
    return table.to_rich(words=0, caption=caption)


def _grid(title: str | None = None) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    return table


def _titled(run: Run, differing: Collection[str]) -> Text:
    difference = describe_difference(run, differing) if run.readable else "cannot be read by this version"
    parts = ("└ " if run.kind in MEMBERS else "", short_title(run.title), "  ", (difference, "dim"))
    tags = "".join(f"  #{tag}" for tag in run.tags)
    return Text.assemble(*parts, (tags if difference else tags[2:], "magenta"), overflow="fold")


def _training(run: Run) -> str:
    """Return the training time, marked if it is predicted."""
    clock = f" {run.clock}" if run.clock == summary.PREDICTED and run.seconds is not None else ""
    return f"{duration(run.seconds)}{clock}"


def _styled(run: Run, text: str) -> Text:
    return Text(text, style=STATUS_STYLES.get(run.status, ""))


def _epochs(run: Run) -> str:
    done = run.result.get("epochs")
    if not run.readable or run.kind == SCRIPT:
        return NOTHING if done is None else str(done)
    wanted = run.experiment.training.epochs
    return str(wanted) if done == wanted else f"{NOTHING if done is None else done}/{wanted}"


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
        caption = str(run.result.get("mode", "")).replace("-", " ")
        if run.seconds is not None:
            caption += f"; {duration(run.seconds)} {run.clock}, training time of the busiest core"
        shown.append(folds_table(run).to_rich(caption=caption))
        shown += [Text(line, style="red", overflow="fold") for line in failed_folds(run)]
    models = models_table(run)
    if models.rows:
        shown.append(models.to_rich())
    return Group(*(Padding(item, (0, 0, 1, 0)) for item in shown))


def folds_table(run: Run) -> TextTable:
    """Return one line for each fold, then the mean, the standard deviation and the 95% interval."""
    folds: list[RecordedFold] = run.result["folds"]
    scored = [(part, name) for name in shown_metrics(run) for part in PARTS]
    rows = [_line(fold, scored) for fold in folds]
    spread = run.result.get("spread", {})
    if spread:
        of_all = [(name, spread.get(part, {}).get(name, {})) for part, name in scored]
        for word, key in (("mean", "mean"), ("deviation", "std")):
            rows.append([word, "", *(metric_value(name, item.get(key)) for name, item in of_all), "", "", ""])
        rows.append(["95% interval", "", *(mean_interval(name, item) for name, item in of_all), "", "", ""])
    names = [f"{PART_NAMES.get(part, part)} {one_line(name)}" for part, name in scored]
    columns = ["fold", "run", *names, "samples", "training, measured", "threads"]
    return TextTable(columns, rows, totals=len(rows) - len(folds))


def models_table(run: Run) -> TextTable:
    """Return the metrics of the folds' models on the test part, combined in three ways."""
    folds, models = run.result.get("folds") or [], run.result.get("models") or {}
    scored = {key: models[key]["metrics"] for key in MODEL_USES if models.get(key, {}).get("metrics")}
    names = [name for name in shown_metrics(run) if any(name in metrics for metrics in scored.values())]
    rows = []
    for key, metrics in scored.items():
        which = f", {name_of(folds[models[key]['fold'] - 1])}" if key == "best" else ""
        rows.append([f"{MODEL_USES[key]}{which}", *(metric_value(name, metrics.get(name)) for name in names)])
    return TextTable(["on the test part", *map(one_line, names)], rows)


def failed_folds(run: Run) -> list[str]:
    folds: list[RecordedFold] = run.result.get("folds") or []
    return [
        f"{name_of(fold)}: {one_line((fold['error'] or 'no error message').splitlines()[0])}"
        for fold in folds
        if fold["status"] == "failed"
    ]


def shown_metrics(run: Run) -> list[str]:
    """Return the metrics to show; the loss only if there is no other metric."""
    names = list(run.result.get("spread", {}).get("validation", {})) or list(run.metrics)
    return [name for name in names if name != "loss"] or names


def name_of(fold: RecordedFold) -> str:
    return fold_name(fold["fold"], fold["repeat"], fold["node"])


def mean_interval(name: str, spread: dict[str, Any]) -> str:
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
