"""One page that shows runs to others: a single file that fetches nothing, reads well anywhere and prints."""

import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.errors import StoreError
from tenfold.files import write_atomically
from tenfold.report import export, plots, sections, summary
from tenfold.report.compare import labels
from tenfold.report.words import moment, plain
from tenfold.runs import Run

MOST_TIMELINES = 4


def write(runs: Sequence[Run], path: str | Path) -> Path:
    """Write the report of one run, or of several side by side, and return where it is."""
    path = Path(path)
    page = render(runs)
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise StoreError(f"the report cannot be written to {path}: {error.strerror or error}") from None
    return path


def render(runs: Sequence[Run]) -> str:
    """Return the report as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    if not runs:
        raise StoreError("there is no run to report; `tenfold runs` lists those there are")
    loader = PackageLoader("tenfold.report", "templates")
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return pages.get_template("report.html").render(_content(runs))


def _content(runs: Sequence[Run]) -> dict[str, Any]:
    from markupsafe import Markup

    def drawn(svg: str) -> Markup:
        return Markup(svg)  # no escaping: matplotlib has escaped the texts in it

    names = plots.metric_names(runs)
    several = len(runs) > 1
    return {
        "runs": [_about(run, label) for run, label in zip(runs, labels(runs), strict=True)],
        "several": several,
        "title": plain(runs[0].title) if not several else f"{len(runs)} runs compared",
        "written": moment(time.time()),
        "headline": sections.headline(runs),
        "curves": {
            over: [drawn(svg) for name in names if (svg := plots.curves(runs, name, over))] for over in plots.AXES
        },
        "time_split": drawn(plots.time_split(runs)),
        "timelines": [(run.id, drawn(svg)) for run in runs[:MOST_TIMELINES] if (svg := plots.timeline(run))],
        "comparison": sections.comparison(runs) if several else None,
        "over_seeds": sections.over_seeds(runs),
        "differences": sections.differences(runs),
        "fields": sections.fields(runs),
        "changed": sections.changed(runs[0]),
        "machines": sections.machines(runs),
        "downloads": [
            _download(runs, "csv", "text/csv", export.to_csv(runs)),
            _download(runs, "json", "application/json", export.to_json(runs)),
        ],
    }


def _about(run: Run, label: str) -> dict[str, Any]:
    return {
        "id": run.id,
        "label": label,
        "title": plain(run.title),
        "status": run.status,
        "state": sections.state(run),
        "began": moment(run.created),
        "what": [summary.model(run), summary.data(run), summary.hosts(run)],
        "epochs": sections.epochs(run),
        "happenings": sections.happenings(run),
        "command": run.facts.get("command", ""),
        "code": run.facts.get("code", ""),
    }


def _download(runs: Sequence[Run], ending: str, kind: str, content: str) -> dict[str, str]:
    numbers = "-".join(str(run.id) for run in runs[:4]) + ("-and-more" if len(runs) > 4 else "")
    encoded = base64.b64encode(content.encode()).decode()
    return {
        "name": f"tenfold-run{'s' if len(runs) > 1 else ''}-{numbers}.{ending}",
        "label": ending.upper(),
        "address": f"data:{kind};charset=utf-8;base64,{encoded}",
    }
