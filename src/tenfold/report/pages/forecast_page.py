"""The page of an outlook: the table, the curve of the speedup with its bend explained, and where the time would go."""

from typing import Any

from tenfold.errors import ExperimentError
from tenfold.report import clocks
from tenfold.report import knee as bend
from tenfold.report.formatting import between, count, duration, plain, several
from tenfold.report.pages import comparison_page as settings
from tenfold.report.pages import sections
from tenfold.report.pages.page import download, fill
from tenfold.report.pages.sections import number
from tenfold.report.plots import forecast_plots as outlook_plots
from tenfold.report.plots.styles import Looks
from tenfold.report.results.forecast_result import Forecast


def render(outlook: Forecast) -> str:
    """Return the page as HTML."""
    if not outlook.rows:
        raise ExperimentError("there is no prediction to report; give at least one setting")
    looks = Looks(outlook.rows)
    files = (("csv", outlook.to_csv()), ("json", outlook.to_json()))
    first = outlook.forecasts[0].experiment
    explanation = outlook.explanation()
    content = {
        "title": plain(first.title),
        "eyebrow": "outlook, predicted",
        "facts": [several(len(outlook.rows), "setting"), "no training was done", *_calibrated(outlook)],
        "truth": clocks.truth(outlook.rows),
        "headline": _headline(outlook),
        "table": settings.table(outlook, looks),
        "notes": [note for note in outlook.notes() if note not in (*explanation, *outlook.reasons())],
        "speedup": outlook_plots.speedup(outlook.rows, looks),
        "shares": outlook_plots.shares(outlook.rows),
        "explanation": explanation,
        "reasons": outlook.reasons(),
        "fields": sections.fields(outlook.forecasts),
        "downloads": [download(f"tenfold-outlook.{ending}", ending.upper(), text) for ending, text in files],
    }
    return fill("outlook.html", content)


def _headline(outlook: Forecast) -> list[dict[str, Any]]:
    rows = bend.meeting(outlook.rows)
    which = "" if len(rows) == len(outlook.rows) else " with rounds"
    fastest = min(rows, key=lambda row: row.seconds.mean or 0.0)
    seconds = fastest.seconds.mean or 0.0
    around = f"{between(*fastest.interval, seconds)}, " if fastest.interval else ""
    numbers = [number(f"shortest training{which}, predicted", duration(seconds), f"{around}{fastest.label}")]
    if faster := [row for row in rows if row.speedup is not None and row.workers > 1]:
        top = max(faster, key=lambda row: row.speedup or 0.0)
        numbers.append(number(f"highest speedup{which}, predicted", f"{top.speedup:.3g}", top.label))
    bends = [(name, first) for name, group in bend.families(rows) if (first := bend.find(group).first)]
    if bends:
        name, last = max(bends, key=lambda one: one[1].workers)
        where = f"the latest of {len(bends)}, {name}" if len(bends) > 1 else name
        numbers.append(number("workers at the bend", count(last.workers), where))
    return numbers


def _calibrated(outlook: Forecast) -> list[str]:
    return ["uncalibrated"] if any(not row.calibrated for row in outlook.rows) else ["calibrated"]
