"""The page of a twin: measured and predicted times side by side, and both timelines on one axis."""

import json

from tenfold.report import clocks, summary
from tenfold.report.formatting import date_time, duration
from tenfold.report.pages import figures, sections
from tenfold.report.pages.page import download_link, render_template
from tenfold.report.plots import timeline_plots
from tenfold.report.results.twin_result import Twin, signed_percent


def render_twin(twin: Twin) -> str:
    """Return the page as HTML."""
    real, virtual = both = [twin.real, twin.virtual]
    lanes = timeline_plots.twin_timeline_plot(real, virtual)
    name = f"tenfold-twin-{real.id}-{virtual.id}"
    content = {
        "title": f"{sections.page_title(real.experiment)}: real and virtual run",
        "eyebrow": f"twin, runs {real.id} and {virtual.id}",
        "facts": [
            summary.describe_model(real),
            summary.describe_data(real),
            summary.describe_workers(real),
            date_time(real.created),
        ],
        "truth": clocks.page_statement(both),
        "headline": [
            ("largest difference between the weights", *twin.weights().split(", ")),
            ("training time", duration(real.seconds), "measured"),
            ("training time", duration(virtual.seconds), clocks.describe_clock(virtual)),
            ("error of the prediction", signed_percent(twin.error), "of the measured training time"),
        ],
        "table": twin.table(),
        "notes": twin.notes(),
        "timelines": lanes is not None,
        "figures": figures.page_figures([], both, {"twin": lanes}),
        "prediction": summary.prediction_notes(virtual),
        "changed": sections.changed_settings(real),
        "downloads": [
            download_link(f"{name}.json", "JSON", twin.to_json()),
            download_link(f"{name}-trace.json", "Trace", json.dumps(twin.trace()), "Both timelines, for Perfetto"),
        ],
    }
    return render_template("twin.html", content)
