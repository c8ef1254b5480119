"""Charts as values that pages draw, with their colors and styles.

Each has a contrast of at least 3:1 on both backgrounds of the report, and any two are at least 20 apart in CIELAB, also
as seen without red, green or blue cones (Machado, Oliveira & Fernandes 2009). Runs also get a marker each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from tenfold.reports.comparison_rows import Row
from tenfold.reports.differences import MIXING_FIELDS, describe_settings
from tenfold.reports.formatting import joined, plural
from tenfold.reports.summary import PREDICTED

BLUE, ORANGE, GREEN, MAGENTA = "#2d69d2", "#e17800", "#4ba55a", "#b42d87"
LAVENDER, OLIVE, RED, PINK = "#a587d2", "#5a694b", "#c31e0f", "#d27896"

SERIES = (BLUE, ORANGE, GREEN, MAGENTA, LAVENDER, OLIVE, RED, PINK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")

KIND_COLORS = {
    "data": GREEN,
    "copy": MAGENTA,
    "compute": BLUE,
    "wait": RED,
    "communicate": ORANGE,
    "evaluate": LAVENDER,
    "save": PINK,
    "start": OLIVE,
}


def series(at: int) -> tuple[str, str]:
    """Return the color and the marker of the run at this position; they repeat after a while."""
    return SERIES[at % len(SERIES)], MARKERS[(at + at // len(SERIES)) % len(MARKERS)]


Spans = Mapping[str, Sequence[int]]
"""Columns of the same length: row, kind, and begin and length in microseconds."""


class ChartPoint(NamedTuple):
    """A point of a line, its text under the pointer, and both ends of its deviation or interval."""

    x: float
    y: float
    note: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    """A line, or points where `joined` is false."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    notes: Sequence[str] = ()
    """Tooltips of the points."""
    color: str = ""
    """Empty for the page's text color."""
    dash: Sequence[float] = ()
    """Lengths of dashes and gaps in pixels; none for a solid line."""
    joined: bool = True
    reference: bool = False
    """Whether it is a reference line, such as the ideal speedup; it is drawn faintly and without points."""
    markers: Sequence[str] = ()
    """The marker of each point, such as "o" or "s"; none for discs."""
    fill: str = "full"
    """The filled part of a marker: full, left, bottom, or none for a predicted time, as the legend explains."""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """Both ends of each point's deviation or interval."""
    spread: Literal["bars", "band"] = "bars"
    """How deviations are drawn; if there are many bands, each is faint until the pointer is near its line."""
    rings: Sequence[int] = ()
    """Indices of emphasized points."""
    numbers: Sequence[str] = ()
    """A short text beside each point."""

    @classmethod
    def of(cls, label: str, points: Sequence[ChartPoint], **look: Any) -> Self:
        """Return a line through points; missing deviations are omitted."""
        deviate = any(point.low != point.high for point in points)
        return cls(
            label=label,
            x=[point.x for point in points],
            y=[point.y for point in points],
            notes=[point.note for point in points],
            low=[point.y if point.low is None else point.low for point in points] if deviate else (),
            high=[point.y if point.high is None else point.high for point in points] if deviate else (),
            **look,
        )


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Lines or points over numbers, with zoom, values under the pointer, and a legend that hides and shows lines."""

    kind: ClassVar[str] = "lines"
    title: str
    """The quantity on the vertical axis, with its unit."""
    x_label: str
    lines: Sequence[ChartLine]
    unit: str = ""
    """The unit after a value, such as "%"."""
    x_log: Literal[0, 2, 10] = 0
    """The base of a logarithmic axis; 0 for a linear one."""
    y_log: Literal[0, 2, 10] = 0
    x_ticks: Sequence[float] = ()
    """Positions of the ticks on the horizontal axis; chosen automatically if empty."""
    x_names: Sequence[str] = ()
    """Labels of the ticks instead of numbers."""
    y_range: tuple[float | None, float | None] = (None, None)
    """The ends of the vertical axis; None is derived from the values."""
    target: float | None = None
    """The value at which a dotted horizontal line is drawn."""
    keys: Sequence[tuple[str, str]] = ()
    """Markers that the legend explains, each with its meaning."""
    from_zero: bool = False
    """Whether the horizontal axis begins at zero."""


@dataclass(frozen=True, kw_only=True)
class BarPart:
    """A bar of one series in a table of bars; its ends are shares of the width."""

    series: int
    begin: float
    end: float
    text: str = ""
    """The text beside it."""
    note: str = ""
    """What is shown under the pointer."""
    striped: bool = False


@dataclass(frozen=True, kw_only=True)
class BarTable:
    """Rows of bars: one column for each measure, in it one bar for each series, which the legend hides and shows."""

    kind: ClassVar[str] = "bar-table"
    title: str
    measures: Sequence[str]
    """The headings of the columns."""
    zeros: Sequence[float]
    """The position of zero in each column, as a share of its width."""
    series: Sequence[tuple[str, str]]
    """Names and colors."""
    rows: Sequence[tuple[str, Sequence[Sequence[BarPart]]]]
    """The name of each row, and the bars of each of its columns."""
    stripes: str = ""
    """The meaning of striped bars, if there are any."""
    one_line: bool = False
    """Whether the bars of a cell are drawn on one line, not one below the other."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Repeated measurements of one thing, with their mean and its interval."""

    name: str
    color: str
    values: Sequence[float]
    notes: Sequence[str]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    about: str = ""
    """The tooltip of the mean."""


@dataclass(frozen=True, kw_only=True)
class StripChart:
    """A strip of points for each row, on one axis."""

    kind: ClassVar[str] = "strips"
    title: str
    unit: str
    strips: Sequence[Strip]


@dataclass(frozen=True, kw_only=True)
class LaneChart:
    """A timeline with one lane for each row."""

    kind: ClassVar[str] = "lanes"
    title: str
    clock: str
    rows: Sequence[str]
    kinds: Sequence[tuple[str, str]]
    """Names and colors of the kinds of spans."""
    spans: Spans
    texts: Sequence[str] = ()
    """Labels of the spans, shown if there is enough space."""
    until: float | None = None
    """The seconds that the axis shows; None for all."""
    together: int = 1
    """The number of rows in a group, drawn close to each other."""


@dataclass(frozen=True, kw_only=True)
class ShareChart:
    """A breakdown of time, one bar for each name: shares of one by kind."""

    kind: ClassVar[str] = "shares"
    title: str
    clock: str
    bars: Sequence[tuple[str, Mapping[str, float]]]


@dataclass(frozen=True, kw_only=True)
class ParallelAxis:
    """An axis of parallel coordinates, from 0 to 1."""

    name: str
    ticks: Sequence[tuple[float, str]]
    """Places on it, and their labels."""


@dataclass(frozen=True, kw_only=True)
class ParallelLine:
    """A line across all axes."""

    places: Sequence[float]
    """The position of the line on each axis."""
    rank: float
    """From 0 for the worst to 1 for the best, which is the darkest."""
    note: str
    """What is shown under the pointer."""
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class ParallelChart:
    """Parallel coordinates: a line connects the values of one item."""

    kind: ClassVar[str] = "parallel"
    title: str
    axes: Sequence[ParallelAxis]
    lines: Sequence[ParallelLine]


Chart = LineChart | BarTable | StripChart | LaneChart | ShareChart | ParallelChart


def chart_data(charts: Mapping[str, Chart | None]) -> dict[str, dict[str, Any]]:
    """Return charts by name as data for a page; None is omitted."""
    return {name: {"kind": item.kind, **asdict(item)} for name, item in charts.items() if item is not None}


Fill = Literal["full", "none", "left", "bottom"]
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1, 1.2), (5, 1.2, 1, 1.2), (8, 2), (3, 1, 1, 1, 1, 1))
"""Lengths of dashes and gaps as multiples of a line's width; none for a solid line."""
LINE_WIDTH = 1.6
FILLS: tuple[Fill, ...] = ("full", "left", "bottom")
"""Marker fills of settings with measured times; markers of predicted times are hollow."""


@dataclass(frozen=True)
class Style:
    """Color, line and marker."""

    color: str
    """Empty for the text color."""
    dashes: tuple[float, ...] = ()
    """One of DASHES."""
    fill: Fill = "full"
    marker: str = "o"

    @property
    def dash(self) -> list[float]:
        return [LINE_WIDTH * length for length in self.dashes]


class PlotStyles:
    """The meaning of colors, lines and markers on a page.

    The color stands for the strategy (or whatever else differs first), the marker for the number of workers, its fill
    for the other fields; it is hollow where times were predicted. A single worker does not average, so it has the
    page's text color instead of a strategy's. Settings of one color have different lines.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        names = [name for name in (rows[0].settings if rows else ()) if name != "workers"]
        self._first = next((name for name in ("strategy", *names) if name in names), "workers")
        self._rest = [name for name in names if name != self._first]
        self._clocks = len({row.clock for row in rows}) > 1
        mixing = [row for row in rows if not self._is_neutral(row)]
        self.colors = _places(self._describe(row, [self._first]) for row in mixing)
        self._free = []
        for name in self._rest:
            values = {(self._describe(row, [self._first]), str(row.settings.get(name))) for row in mixing}
            self._free += [name] if len(values) > len(self.colors) else []
        self.others = _places(self._fill_fields(row) for row in mixing)
        self.workers = _places(plural(row.workers, "worker") for row in rows)
        self._lines: dict[str, dict[str, int]] = {}
        for row in rows:
            lines = self._lines.setdefault(self._color(row), {})
            lines.setdefault(row.label, len(lines))

    def style(self, row: Row) -> Style:
        other = self.others.get(self._fill_fields(row), 0)
        worker = self.workers[plural(row.workers, "worker")]
        marker = MARKERS[(worker if len(self.workers) > 1 else other) % len(MARKERS)]
        color = self._color(row)
        line = self._lines[color][row.label]
        fill = "none" if row.clock == PREDICTED else FILLS[(other if color else line) % len(FILLS)]
        return Style(color, DASHES[line % len(DASHES)], fill, marker)

    def curve_style(self, row: Row) -> Style:
        """Return the style of a curve over the workers, in the page's text color if colors stand for workers."""
        style = self.style(row)
        return replace(style, color="") if self._first == "workers" else style

    def legend_name(self, row: Row) -> str:
        """Return the meaning of the color and fill of a setting's points."""
        clock = row.clock if self._clocks else ""
        if not self._is_neutral(row):
            return joined(self._describe(row, [self._first]), self._describe(row, self._rest), clock) or row.label
        others = self._describe(row, [name for name in self._rest if name not in MIXING_FIELDS])
        return joined(plural(1, "worker"), others, clock)

    def marker_keys(self) -> list[tuple[str, str]]:
        """Return each marker with its meaning if markers and colors have different meanings."""
        if len(self.workers) == 1 or self._first == "workers":
            return []
        return [(MARKERS[at % len(MARKERS)], name) for name, at in self.workers.items()]

    def field_colors(self, name: str, values: Sequence[str]) -> dict[str, str]:
        """Return a color for each value of a field: its own, or one that is not used for anything else on the page."""
        own = self.colors if name == self._first else {}
        places = {value: own.get(value, len(self.colors) + at) for at, value in enumerate(values)}
        return {value: SERIES[place % len(SERIES)] for value, place in places.items()}

    def _color(self, row: Row) -> str:
        if self._is_neutral(row):
            return ""
        return SERIES[self.colors[self._describe(row, [self._first])] % len(SERIES)]

    def _is_neutral(self, row: Row) -> bool:
        return row.workers == 1 and self._first in MIXING_FIELDS

    def _fill_fields(self, row: Row) -> str:
        """Return the fields that the fill of a marker stands for: the fields that the color does not determine."""
        return self._describe(row, self._free)

    def _describe(self, row: Row, names: Sequence[str]) -> str:
        return describe_settings({name: row.settings[name] for name in names if name in row.settings})


def _places(keys: Iterable[str]) -> dict[str, int]:
    return {key: at for at, key in enumerate(dict.fromkeys(keys))}
