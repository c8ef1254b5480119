"""Plots as values: what the scripts of a page need to draw them. A page carries them inside, as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

Spans = Mapping[str, Sequence[int]]
"""Columns of the same length: row, kind, and begin and length in microseconds."""


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    """A line, or points where `joined` is false."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    notes: Sequence[str] = ()
    """What is shown of each point under the pointer."""
    colour: str = ""
    """Empty for the page's text colour."""
    dash: Sequence[float] = ()
    """Lengths of dashes and gaps in pixels; none for a solid line."""
    joined: bool = True
    reference: bool = False
    """Whether it is something to compare with, such as the ideal speedup; it is drawn faintly and without points."""
    markers: Sequence[str] = ()
    """The marker of each point, such as "o" or "s"; none for discs."""
    fill: str = "full"
    """How much of a marker is filled: full, none, left or bottom."""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """Both ends of each point's deviation or interval."""
    spread: Literal["bars", "band"] = "bars"
    """How deviations are drawn; a band is faint until the pointer is near its line if there are many."""
    rings: Sequence[int] = ()
    """The places of points that are emphasized."""
    numbers: Sequence[str] = ()
    """A short text beside each point."""


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Lines or points over numbers, with zoom, values under the pointer, and a legend that hides and shows lines."""

    kind: ClassVar[str] = "lines"
    title: str
    """What the vertical axis shows, with its unit."""
    x_label: str
    lines: Sequence[ChartLine]
    unit: str = ""
    """What follows a value, such as "%"."""
    x_log: Literal[0, 2, 10] = 0
    """The base of a logarithmic axis; 0 for a linear one."""
    y_log: Literal[0, 2, 10] = 0
    x_ticks: Sequence[float] = ()
    """Where the horizontal axis has numbers; chosen by its length if empty."""
    x_names: Sequence[str] = ()
    """What is written at these places instead of their numbers."""
    y_range: tuple[float | None, float | None] = (None, None)
    """The ends of the vertical axis; those that are None follow from the values."""
    target: float | None = None
    """Where a dotted line goes across."""
    keys: Sequence[tuple[str, str]] = ()
    """Markers that the legend explains, each with its meaning."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar with its text."""

    label: str
    value: float | None
    text: str
    colour: str
    """Empty for the page's text colour."""
    note: str = ""
    """What is shown under the pointer."""


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """Horizontal bars from zero, in groups of the same name."""

    kind: ClassVar[str] = "bars"
    title: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    longest: float | None = None
    """The value of a bar across the plot; None for the highest value."""


@dataclass(frozen=True, kw_only=True)
class BarPart:
    """A bar of one series in a table of bars; its ends are shares of the width."""

    series: int
    begin: float
    end: float
    text: str = ""
    """What is written beside it."""
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
    """Where zero is in each column, as a share of its width."""
    series: Sequence[tuple[str, str]]
    """Names and colours."""
    rows: Sequence[tuple[str, Sequence[Sequence[BarPart]]]]
    """The name of each row, and the bars of each of its columns."""
    stripes: str = ""
    """What striped bars mean, if there are any."""
    one_line: bool = False
    """Whether the bars of a cell are drawn on one line, not one below the other."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Repeated measurements of one thing, with their mean and its interval."""

    name: str
    colour: str
    values: Sequence[float]
    notes: Sequence[str]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    about: str = ""
    """What is shown of the mean under the pointer."""


@dataclass(frozen=True, kw_only=True)
class StripChart:
    """A strip of points for each row, on one axis."""

    kind: ClassVar[str] = "strips"
    title: str
    unit: str
    strips: Sequence[Strip]


@dataclass(frozen=True, kw_only=True)
class LaneChart:
    """What happened when, one lane for each row."""

    kind: ClassVar[str] = "lanes"
    title: str
    clock: str
    rows: Sequence[str]
    kinds: Sequence[tuple[str, str]]
    """Names and colours of what can happen."""
    spans: Spans
    texts: Sequence[str] = ()
    """What is written into each span, where there is room."""
    until: float | None = None
    """The seconds that the axis shows; None for all."""
    together: int = 1
    """The number of rows in a group, drawn close to each other."""


@dataclass(frozen=True, kw_only=True)
class ShareChart:
    """What the time is spent on, one bar for each name: shares of one by kind."""

    kind: ClassVar[str] = "shares"
    title: str
    clock: str
    bars: Sequence[tuple[str, Mapping[str, float]]]


Chart = LineChart | BarChart | BarTable | StripChart | LaneChart | ShareChart


def chart_data(charts: Mapping[str, Chart | None]) -> dict[str, dict[str, Any]]:
    """Return charts by name as a page carries them; those that are None are left out."""
    return {name: {"kind": one.kind, **asdict(one)} for name, one in charts.items() if one is not None}
