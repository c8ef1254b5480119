"""The page of a twin: measured and predicted times beside each other, and both timelines on one axis."""

import json

from tenfold.report import clocks, summary
from tenfold.report.formatting import duration, moment, plain
from tenfold.report.pages import sections
from tenfold.report.pages.page import download, fill
from tenfold.report.pages.sections import number
from tenfold.report.plots import timeline
from tenfold.report.results.twin_result import Twin, percent


def render(twin: Twin) -> str:
    """Return the page as HTML."""
    real, virtual = both = [twin.real, twin.virtual]
    name = f"tenfold-twin-{real.id}-{virtual.id}"
    content = {
        "title": plain(real.title),
        "eyebrow": f"twins, runs {real.id} and {virtual.id}",
        "facts": [summary.model(real), summary.data(real), summary.hosts(real), moment(real.created)],
        "truth": clocks.truth(both),
        "headline": [
            number("largest difference of the weights", *twin.weights().split(", ")),
            number("training time", duration(real.seconds), "measured"),
            number("training time", duration(virtual.seconds), clocks.about(virtual)),
            number("error of the prediction", percent(twin.error), "of the measured training time"),
        ],
        "table": {"columns": ["time", "measured", "predicted", "error"], "rows": twin.rows()},
        "notes": twin.notes(),
        "timelines": timeline.timelines(real, virtual),
        "foretold": summary.foretold(virtual),
        "changed": sections.changed(real),
        "downloads": [
            download(f"{name}.json", "JSON", twin.to_json()),
            download(f"{name}-trace.json", "Trace", json.dumps(twin.trace()), "Both timelines, for Perfetto"),
        ],
    }
    return fill("twin.html", content)
