"""Plots of predictions over the workers: the speedup, and what the time is spent on."""

from collections.abc import Sequence

from tenfold.report import clocks
from tenfold.report.formatting import duration, interval, plural, ratio
from tenfold.report.knee import find_knee, scaling_families
from tenfold.report.plots.charts import ChartLine, LineChart, ShareChart
from tenfold.report.plots.scaling_plots import reference_line, scaling_curves
from tenfold.report.plots.styles import PlotStyles, Style
from tenfold.report.rows import Row

MOST_SHARES = 6
"""How many groups of settings are drawn, those with the highest speedups."""
MOST_BANDS = 3
"""With more curves than this, only the band of the curve below the pointer is drawn: all would hide each other."""


def forecast_speedup_plot(rows: Sequence[Row], styles: PlotStyles, hardware: str) -> LineChart | None:
    """Return the speedup over the workers on logarithmic axes, with intervals; rings show where it levels off."""
    curves = scaling_curves(rows, styles)
    if not curves:
        return None
    families = dict(scaling_families(rows))
    widest = max(row.workers for row in rows)

    def line(label: str, style: Style, group: Sequence[Row]) -> ChartLine:
        first = find_knee(families[label]).first if label in families else None
        workers = [1, *(row.workers for row in group)]
        bounds = [(1.0, 1.0), *(speedup_bounds(row) for row in group)]
        return ChartLine(
            label=label,
            x=workers,
            y=[1.0, *(row.speedup or 1.0 for row in group)],
            notes=["1 worker: the baseline", *(_note(label, row) for row in group)],
            colour=style.colour,
            dash=style.dash,
            fill=style.fill,
            low=[low for low, _ in bounds],
            high=[high for _, high in bounds],
            spread="band",
            rings=[workers.index(first.workers)] if first is not None and first.workers in workers else (),
        )

    return LineChart(
        title=f"speedup T1/Tn ({clocks.clock_names(rows)}, {hardware})",
        x_label="workers",
        lines=[reference_line("ideal: number of workers", [1, widest], [1, widest]), *(line(*one) for one in curves)],
        x_log=2,
        y_log=2,
        x_ticks=sorted({1, *(row.workers for row in rows)}),
    )


def has_bands(rows: Sequence[Row]) -> bool:
    """Return whether the intervals of all curves are drawn as bands."""
    return len(scaling_families(rows)) <= MOST_BANDS


def share_plots(rows: Sequence[Row]) -> list[ShareChart]:
    """Return, for each group of settings, what the time is spent on over the workers."""
    found = [(name, group) for name, group in scaling_families(rows) if len(group) > 1]
    highest = sorted(found, key=lambda family: -max(row.speedup or 0.0 for row in family[1]))[:MOST_SHARES]
    return [
        ShareChart(
            title=name or "all settings",
            clock=clocks.clock_names(group),
            bars=[
                (plural(row.workers, "worker"), {kind: share for kind, share in row.shares.items() if share})
                for row in group
            ],
        )
        for name, group in found
        if (name, group) in highest
    ]


def speedup_bounds(row: Row) -> tuple[float, float]:
    """Return the speedup at both ends of the interval, for the predicted T1."""
    low, high = row.interval or (row.seconds.mean or 1.0,) * 2
    single = (row.speedup or 1.0) * (row.seconds.mean or 1.0)
    return single / high, single / low


def _note(label: str, row: Row) -> str:
    low, high = speedup_bounds(row)
    seconds = row.seconds.mean or 0.0
    around = f" {interval(*row.interval, seconds)}" if row.interval else ""
    bounds = f" [{ratio(low)}-{ratio(high)}]" if row.interval else ""
    times = f"{duration(seconds)}{around} {row.clock}"
    return f"{label}\n{plural(row.workers, 'worker')}: {ratio(row.speedup)}{bounds}, {times}"
