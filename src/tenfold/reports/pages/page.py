"""Parts of all pages: scripts and styles, the figures of runs, and rendering a template into one file."""

import base64
import math
import re
import time
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from tenfold.common.files import check_output, write_atomically
from tenfold.errors import StoreError
from tenfold.reports import summary
from tenfold.reports.charts import KIND_COLORS, SERIES, Chart, Style, chart_data
from tenfold.reports.comparison_rows import Row
from tenfold.reports.formatting import date_time, grouped
from tenfold.runs import Run
from tenfold.runs.events import Started
from tenfold.runs.store import Follower

if TYPE_CHECKING:
    from jinja2 import Environment


STATIC = "static"
LIBRARY = "uplot.min.js"
"""uPlot 1.6.32 by Leon Sorokin, MIT licence, https://github.com/leeoniya/uPlot."""
DRAWING, STILL = "page.js", "still.js"
"""The scripts of pages with and without interactive plots."""
IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"\./(?P<name>[\w.-]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}


def static_files(package: str) -> dict[str, tuple[str, bytes]]:
    return {
        path.name: (TYPES[PurePosixPath(path.name).suffix], path.read_bytes())
        for path in (files(package) / STATIC).iterdir()
        if PurePosixPath(path.name).suffix in TYPES
    }


@cache
def bundled_script(entry: str) -> str:
    """Return a module and all modules that it imports as one script, in which names are shared."""
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name in ordered:
            return
        for match in IMPORT.finditer(_text(name)):
            visit(match["name"])
        ordered.append(name)

    visit(entry)
    modules = (EXPORT.sub("", IMPORT.sub("", _text(name))) for name in ordered)
    library = [_text(LIBRARY)] if entry == DRAWING else []
    return "\n".join([*library, *modules]).replace("</script", "<\\/script")


def _text(name: str) -> str:
    return (files("tenfold.reports.pages") / STATIC / name).read_text(encoding="utf-8")


REPORT_COLUMNS = 2000
"""The number of columns of a curve in a report; the lowest and highest points of each column are kept."""
DIGITS = 6

Columns = dict[str, Any]


@dataclass
class Curve:
    """One metric on one part of the data, as one worker measured it."""

    name: str
    part: str
    worker: int
    number: "array[int]" = field(default_factory=lambda: array("q"))
    """The numbers of the events, which are compared with a cursor."""
    step: "array[int]" = field(default_factory=lambda: array("q"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    value: "array[float]" = field(default_factory=lambda: array("d"))

    def columns(self, chosen: "np.ndarray[Any, Any] | slice") -> Columns:
        """Return the chosen points as lists that can be written as JSON."""
        return {
            "name": self.name,
            "part": self.part,
            "worker": self.worker,
            "step": np.array(self.step)[chosen].tolist(),
            "seconds": _rounded(np.array(self.seconds)[chosen]),
            "value": _rounded(np.array(self.value)[chosen]),
        }


class Curves:
    """All curves of a run; points are added as they are measured."""

    def __init__(self) -> None:
        self._curves: dict[tuple[str, str, int], Curve] = {}

    def __iter__(self) -> Iterator[Curve]:
        return iter(self._curves.values())

    def add(self, events: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Add the metrics among recorded events, given as their numbers and values; others are ignored."""
        for number, row in events:
            if row.get("type") != "metric":
                continue
            try:
                key = str(row["name"]), str(row["part"]), int(row["worker"])
                point = int(row["step"]), float(row["seconds"]), float(row["value"])
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if not all(map(math.isfinite, point)):
                continue
            curve = self._curves.get(key) or self._curves.setdefault(key, Curve(*key))
            curve.number.append(number)
            curve.step.append(point[0])
            curve.seconds.append(point[1])
            curve.value.append(point[2])

    def since(self, cursor: int, columns: int = REPORT_COLUMNS) -> list[Columns]:
        """Return the points of events after a cursor; if there are many, the lowest and highest in each column."""
        chosen = []
        for curve in self:
            begin = int(np.searchsorted(np.array(curve.number), cursor, side="right"))
            if begin < len(curve.number):
                chosen.append(curve.columns(begin + _extremes(curve, begin, len(curve.number), columns)))
        return chosen

    def between(self, first: float = -math.inf, last: float = math.inf, columns: int = REPORT_COLUMNS) -> list[Columns]:
        """Return the curves between two steps, and one additional point on either side."""
        chosen = []
        for curve in self:
            steps = np.array(curve.step)
            begin = max(0, int(np.searchsorted(steps, first)) - 1)
            end = min(len(steps), int(np.searchsorted(steps, last, side="right")) + 1)
            chosen.append(curve.columns(begin + _extremes(curve, begin, end, columns)))
        return chosen


def _extremes(curve: Curve, begin: int, end: int, columns: int) -> "np.ndarray[Any, Any]":
    """Return the indices of the first and last points, and of the lowest and highest in each column."""
    count = end - begin
    if count <= 2 * columns:
        return np.arange(count)
    value = np.array(curve.value)[begin:end]
    column = np.arange(count) * columns // count
    order = np.lexsort((value, column))
    edges = np.flatnonzero(np.diff(column[order]))
    lowest, highest = order[np.append(0, edges + 1)], order[np.append(edges, count - 1)]
    return np.unique(np.concatenate(([0, count - 1], lowest, highest)))


def _rounded(values: "np.ndarray[Any, Any]") -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


MOST_SPANS = 4000
"""Up to this number, spans are drawn one by one; beyond it, as sums in each column of the plot."""
LANE_COLUMNS = 400
MICRO = 1e6


class Lanes:
    """The spans of all workers of a run; they are added as they are recorded."""

    def __init__(self) -> None:
        self.number = array("q")
        self.worker = array("l")
        self.kind = array("b")
        self.at = array("d")
        self.seconds = array("d")
        self._ends: dict[int, float] = {}  # of each worker's last sums, which are recorded together
        self._begins: dict[int, float] = {}
        self._totals: dict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys(summary.KINDS, 0.0))

    def add(self, events: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Add the spans among recorded events, given as their numbers and values; others are ignored.

        Sums over several steps begin at the same time; they are laid out one after another.
        """
        for number, row in events:
            if row.get("type") != "span" or row.get("kind") not in summary.KINDS:
                continue
            try:
                worker, at, seconds = int(row["worker"]), float(row["at"]), float(row["seconds"])
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if not 0 <= worker < 2**31 or not 0 <= seconds < np.inf or not 0 <= at < np.inf:
                continue
            self._totals[worker][row["kind"]] += seconds
            if self._begins.get(worker) == at:
                at = self._ends[worker]
            else:
                self._begins[worker] = at
            self._ends[worker] = at + seconds
            self.number.append(number)
            self.worker.append(worker)
            self.kind.append(summary.KINDS.index(row["kind"]))
            self.at.append(at)
            self.seconds.append(seconds)

    def times(self) -> dict[str, float]:
        workers = list(self._totals.values())
        sums = {kind: sum(worker[kind] for worker in workers) for kind in summary.KINDS}
        return {kind: seconds / len(workers) for kind, seconds in sums.items() if seconds}

    def since(self, cursor: int) -> dict[str, Any]:
        begin = int(np.searchsorted(np.array(self.number), cursor, side="right"))
        return self._given(slice(begin, None))

    def between(self, first: float = -np.inf, last: float = np.inf, columns: int = LANE_COLUMNS) -> dict[str, Any]:
        """Return the spans between two times; if there are many, the sums in each column for each worker."""
        at, seconds = np.array(self.at), np.array(self.seconds)
        chosen = np.flatnonzero((at < last) & (at + seconds > first))
        if len(chosen) <= MOST_SPANS:
            return self._given(chosen)
        first, last = max(first, float(at[chosen].min())), min(last, float((at + seconds)[chosen].max()))
        return self._summed(chosen, first, last, columns)

    def _given(self, chosen: "np.ndarray[Any, Any] | slice") -> dict[str, Any]:
        def micro(values: "array[float]") -> list[int]:
            return list(map(int, np.rint(np.array(values)[chosen] * MICRO)))

        worker, kind = np.array(self.worker)[chosen], np.array(self.kind)[chosen]
        return {"worker": worker.tolist(), "kind": kind.tolist(), "at": micro(self.at), "length": micro(self.seconds)}

    def _summed(self, chosen: "np.ndarray[Any, Any]", first: float, last: float, columns: int) -> dict[str, Any]:
        """Return the sums by worker, column and kind, as spans that fill their columns one after another."""
        worker, kind = np.array(self.worker)[chosen], np.array(self.kind)[chosen]
        at, seconds = np.array(self.at)[chosen], np.array(self.seconds)[chosen]
        width = (last - first) / columns
        sums = np.zeros((int(worker.max()) + 1, columns, len(summary.KINDS)))
        begins, ends = (np.clip((time - first) / width, 0, columns) for time in (at, at + seconds))
        low, high = np.minimum(begins.astype(int), columns - 1), np.minimum(ends.astype(int), columns - 1)
        whole = low == high
        np.add.at(sums, (worker[whole], low[whole], kind[whole]), (ends - begins)[whole])
        for item in np.flatnonzero(~whole):
            sums[worker[item], low[item], kind[item]] += low[item] + 1 - begins[item]
            sums[worker[item], low[item] + 1 : high[item], kind[item]] += 1
            sums[worker[item], high[item], kind[item]] += ends[item] - high[item]
        starts = np.arange(columns)[None, :, None] + np.cumsum(sums, axis=2) - sums
        rows, places, kinds = np.nonzero(sums > 1e-3)
        return {
            "worker": rows.tolist(),
            "kind": kinds.tolist(),
            "at": np.rint((first + starts[rows, places, kinds] * width) * MICRO).astype(np.int64).tolist(),
            "length": np.rint(sums[rows, places, kinds] * width * MICRO).astype(np.int64).tolist(),
        }


ALONE = Style(SERIES[0])
"""The style of a single run."""


def page_figures(
    figures: Sequence[dict[str, Any]],
    runs: Iterable[summary.HasClock],
    charts: Mapping[str, Chart | None] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return everything that the scripts of a page draw: the runs' figures, charts by name, colors and names."""
    return {
        "figures": list(figures),
        "clock": summary.clock_names(runs),
        "plots": chart_data(charts or {}),
        "kinds": [
            {"kind": kind, "name": name, "color": KIND_COLORS[kind]} for kind, name in summary.KIND_NAMES.items()
        ],
        **more,
    }


def run_figure(run: Run, label: str = "", style: Style = ALONE) -> dict[str, Any]:
    with closing(Follower(run.store)) as follower:
        events, _ = follower.events(run.id)
    curves, lanes = Curves(), Lanes()
    curves.add(events)
    lanes.add(events)
    return {
        **describe_figure(run, label, style),
        "curves": curves.between(),
        "lanes": lanes.between(),
        "times": run.times or lanes.times(),
    }


def describe_figure(run: Run, label: str = "", style: Style = ALONE) -> dict[str, Any]:
    """Return the description of a run in a figure: name, color, length of an epoch, target."""
    started = next((event for event in run.lifecycle() if isinstance(event, Started)), None)
    training = run.experiment.training
    return {
        "id": run.id,
        "label": label,
        "status": run.status,
        "clock": run.clock,
        "color": style.color or None,
        "dash": style.dash,
        "epochLength": started.steps_per_epoch if started else 0,
        "samples": started.train_samples if started else 0,
        "epochs": training.epochs,
        "target": training.target,
        "marks": _lost_workers(run),
    }


def mean_figure(row: Row, style: Style) -> dict[str, Any]:
    """Return the figure of a setting: the means over its repeats at the steps that all of them measured."""
    each = [run_figure(run, row.label, style) for run in row.runs]
    return {**each[0], "curves": mean_curves([item["curves"] for item in each]), "lanes": None, "repeats": len(each)}


def mean_curves(repeats: Sequence[Sequence[Columns]]) -> list[Columns]:
    """Return the means of repeated curves at the steps that all of them have."""
    if len(repeats) == 1:
        return list(repeats[0])
    alike = grouped(((curve["name"], curve["part"], curve["worker"]), curve) for curves in repeats for curve in curves)
    means = []
    for (name, part, worker), curves in alike.items():
        measured = [
            {step: rest for step, *rest in zip(curve["step"], curve["seconds"], curve["value"], strict=True)}
            for curve in curves
        ]
        steps = sorted(set.intersection(*map(set, measured))) if len(measured) == len(repeats) else []
        points = np.array([[curve[step] for step in steps] for curve in measured]).reshape(len(measured), len(steps), 2)
        seconds, value = points.mean(axis=0).T.tolist()
        means.append({"name": name, "part": part, "worker": worker, "step": steps, "seconds": seconds, "value": value})
    return means


def _lost_workers(run: Run) -> list[dict[str, float]]:
    """Return the points at which a run lost workers: the end of the last epoch that was not repeated."""
    ends = {row["epoch"]: row for row in run.history} if run.result.get("lost") else {}
    times = [ends.get(loss["epoch"] - 1) for loss in run.result.get("lost") or []]
    return [{key: row[key] for key in ("epoch", "step", "seconds")} for row in times if row is not None]


RUN_PARTS = ("details", "above", "headline", "folds", "trials", "prediction", "cores", "epochs", "events")
"""The blocks of a run's page that are rendered again while it is running."""
COMPARISON_PARTS = ("above", "headline", "settings")
"""The same blocks of the page of several runs."""
COMPARISON_CHARTS = ("charts",)
"""The blocks of that page that are rendered again when runs end."""


def render_template(template: str, content: dict[str, Any]) -> str:
    inside = {}
    if not content.get("board"):  # a report file contains its scripts and styles
        drawn = bool(content.get("figures"))
        inside["script"] = bundled_script(DRAWING if drawn else STILL)
        inside["style"] = _text("uplot.min.css") + "\n" + _text("plots.css") if drawn else ""
    return _environment().get_template(template).render(_common() | inside | content)


def render_parts(template: str, content: dict[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return some blocks of a page as HTML, by name."""
    pages, values = _environment(), _common() | content
    parts: dict[str, str] = {}
    for item in (pages.get_template("page.html"), pages.get_template(template)):
        context = item.new_context(values)
        parts |= {name: "".join(render(context)) for name, render in item.blocks.items() if name in names}
    return parts


def _common() -> dict[str, Any]:
    empty = "eyebrow subject status headline doubts downloads figures board several versus"
    return {"written": date_time(time.time()), **dict.fromkeys(empty.split(), "")}


def page_style() -> str:
    return _environment().get_template("report.css").render()


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("tenfold.reports.pages", "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    macros = vars(made.get_template("macros.html").module)
    made.globals |= {name: macro for name, macro in macros.items() if not name.startswith("_")}
    return made


def save_page(page: str, path: str | Path) -> Path:
    path = Path(path)
    check_output(path, "a report")
    try:
        write_atomically(path, page.encode(), named_by_user=True)
    except OSError as error:
        raise StoreError(f"the report cannot be written to {path}: {error.strerror or error}") from None
    return path


def download_link(name: str, label: str, content: str, about: str = "") -> dict[str, str]:
    kind = {"csv": "text/csv"}.get(name.rpartition(".")[2], "application/json")
    encoded = base64.b64encode(content.encode()).decode()
    address = f"data:{kind};charset=utf-8;base64,{encoded}"
    return {"name": name, "label": label, "about": about or f"All numbers as {label}", "address": address}
