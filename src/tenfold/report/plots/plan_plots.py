"""Plots of a plan: how good settings were after short training runs."""

from collections.abc import Sequence

from tenfold.prediction.planning.assessment import Assessment, describe_candidate
from tenfold.report.formatting import metric_scale, metric_value, one_line, plural
from tenfold.report.plots import palette
from tenfold.report.plots.charts import ChartLine, LineChart

MOST_LINES = 8


def probe_plot(assessments: Sequence[Assessment], metric: str, target: float) -> LineChart | None:
    """Return the metric after short runs over the samples they saw, one line a setting, with the target as a line."""
    learning = {one.candidate.curve_key: one for one in reversed(assessments) if one.probes}
    shown = list(reversed(learning.values()))[:MOST_LINES]
    if not shown:
        return None
    scale, unit = metric_scale(metric)

    def line(at: int, one: Assessment) -> ChartLine:
        colour, marker = palette.series(at)
        name = describe_candidate(one.candidate)
        return ChartLine(
            label=f"{name}, left the search" if one.dropped else name,
            x=[probe.samples for probe in one.probes],
            y=[probe.value * scale for probe in one.probes],
            notes=[
                f"{name}\n{plural(probe.samples, 'sample')}: {metric_value(metric, probe.value)}"
                for probe in one.probes
            ],
            colour=colour,
            dash=(2, 3) if one.dropped else (),
            markers=[marker] * len(one.probes),
        )

    return LineChart(
        x_label="training samples seen by all replicas",
        title=f"validation {one_line(metric)}" + (f" ({unit})" if unit else ""),
        unit=unit,
        lines=[line(*each) for each in enumerate(shown)],
        x_log=10,
        target=target * scale,
    )
