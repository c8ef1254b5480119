"""Plots of a plan: how good settings were after short training runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenfold.prediction.planning.planner import Assessment, describe_candidate
from tenfold.report.formatting import one_line
from tenfold.report.plots import palette
from tenfold.report.plots.svg import INK, WIDE, draw_svg, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 8


def probe_plot(assessments: Sequence[Assessment], metric: str, target: float) -> str:
    """Return the metric after short runs over the samples they saw, one line a setting, with the target as a line."""
    learning = {one.candidate.learning_key: one for one in reversed(assessments) if one.probes}
    shown = list(reversed(learning.values()))[:MOST_LINES]
    if not shown:
        return ""
    percent = 100 if metric == "accuracy" else 1

    def paint(figure: "Figure") -> None:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes = figure.subplots()
        for at, one in enumerate(shown):
            colour, marker = palette.series(at)
            x, y = zip(*((probe.samples, probe.value * percent) for probe in one.probes), strict=True)
            line: dict[str, Any] = {"linestyle": ":" if one.dropped else "-", "marker": marker, "markersize": 4}
            axes.plot(x, y, color=colour, linewidth=1.3, label=describe_candidate(one.candidate), **line)
        axes.axhline(target * percent, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), label="target")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("training samples seen by all replicas (log scale)")
        axes.set_ylabel("validation accuracy (%)" if percent == 100 else f"validation {one_line(metric)}")
        legend_below(figure, list(zip(*axes.get_legend_handles_labels(), strict=True)))

    return draw_svg("probes", f"{one_line(metric)} of short training runs", (WIDE, 3.0), paint)
