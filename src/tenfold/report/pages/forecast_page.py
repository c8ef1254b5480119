"""The page of a forecast: predicted speedups, where they level off, and what the time would be spent on."""

from tenfold.errors import ExperimentError
from tenfold.report import clocks, summary
from tenfold.report.formatting import count, duration, interval, plural, ratio
from tenfold.report.knee import find_knee, rows_with_rounds, scaling_families
from tenfold.report.pages import figures, sections
from tenfold.report.pages.comparison_page import settings_table
from tenfold.report.pages.page import download_link, render_template
from tenfold.report.plots import forecast_plots
from tenfold.report.plots.styles import PlotStyles
from tenfold.report.results.forecast_result import Forecast
from tenfold.report.row_ranking import mean_seconds
from tenfold.report.rows import Row
from tenfold.report.tables.columns import SHARES
from tenfold.report.tables.text_table import TextTable


def render_forecast(forecast: Forecast) -> str:
    """Return the page as HTML."""
    if not forecast.rows:
        raise ExperimentError("there is no prediction to report; give at least one setting")
    styles = PlotStyles(forecast.rows)
    links = ", ".join(dict.fromkeys(summary.describe_hardware(one.experiment) for one in forecast.forecasts))
    calibrated = "calibrated" if all(row.calibrated for row in forecast.rows) else "uncalibrated"
    speedup = forecast_plots.forecast_speedup_plot(forecast.rows, styles, links)
    shares = {f"shares-{at}": chart for at, chart in enumerate(forecast_plots.share_plots(forecast.rows))}
    files = (("csv", forecast.to_csv()), ("json", forecast.to_json()))
    first = forecast.forecasts[0].experiment
    content = {
        "title": f"Predicted speedup of {sections.page_title(first)}",
        "eyebrow": "forecast",
        "facts": [plural(len(forecast.rows), "setting"), links, "no training", calibrated],
        "truth": clocks.page_statement(forecast.rows),
        "headline": _headline(forecast),
        "table": settings_table(forecast, styles),
        "notes": forecast.explanations((SHARES,)),
        "speedup": speedup is not None,
        "bands": forecast_plots.has_bands(forecast.rows),
        "knees": _knee_table(forecast),
        "shares": list(shares),
        "figures": figures.page_figures([], forecast.rows, {"speedup": speedup, **shares}),
        "reasons": forecast.reasons(),
        "fields": sections.common_fields(forecast.forecasts),
        "downloads": [download_link(f"tenfold-forecast.{ending}", ending.upper(), text) for ending, text in files],
    }
    return render_template("forecast.html", content)


def _headline(forecast: Forecast) -> sections.Headline:
    rows = rows_with_rounds(forecast.rows)
    which = "" if len(rows) == len(forecast.rows) else " with rounds"
    fastest = min(rows, key=mean_seconds)
    seconds = mean_seconds(fastest)
    around = f"{interval(*fastest.interval, seconds)}, " if fastest.interval else ""
    numbers = [(f"shortest training{which}, predicted", duration(seconds), f"{around}{fastest.label}")]
    if faster := [row for row in rows if row.workers > 1 and (row.speedup or 0.0) > 1]:
        top = max(faster, key=lambda row: row.speedup or 0.0)
        numbers.append((f"highest speedup{which}, predicted", ratio(top.speedup), top.label))
    knees = [(name, first) for name, group in scaling_families(rows) if (first := find_knee(group).first)]
    if knees:
        name, last = max(knees, key=lambda one: one[1].workers)
        where = f"the latest of {len(knees)}, {name}" if len(knees) > 1 else name
        numbers.append(("workers where the speedup levels off", count(last.workers), where))
    return numbers


def _knee_table(forecast: Forecast) -> TextTable:
    """Return where the speedup of each group of settings levels off, and why."""
    families = [(name, rows_with_rounds(group)) for name, group in scaling_families(forecast.rows) if len(group) > 1]
    rows = [[name or "all", *_knee_cells(group)] for name, group in families]
    return TextTable(["setting", "highest speedup", "levels off at", "why"], rows)


def _knee_cells(group: list[Row]) -> list[str]:
    knee, top = find_knee(group), max(group, key=lambda row: row.speedup or 0.0)
    highest = f"{ratio(top.speedup)} with {plural(top.workers, 'worker')}"
    if knee.first is None:
        return [highest, f"beyond {plural(group[-1].workers, 'worker')}", "computing takes most of the time"]
    reasons = []
    if knee.idle is not None:
        communicating, waiting = (knee.idle.shares.get(kind, 0.0) for kind in ("communicate", "wait"))
        reasons.append(
            f"from {count(knee.idle.workers)}: communication {communicating:.0%}, waiting {waiting:.0%} of the time"
        )
    if knee.peak is not None:
        reasons.append(f"beyond {count(knee.peak.workers)}: more workers do not help")
    return [highest, plural(knee.first.workers, "worker"), "; ".join(reasons)]
