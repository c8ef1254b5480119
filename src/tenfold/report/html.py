"""One page that shows runs to others: a single file that fetches nothing, reads well anywhere and prints."""

import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.errors import StoreError
from tenfold.files import write_atomically
from tenfold.report import export, plots, sections, settings, summary, timeline
from tenfold.report.comparison import Comparison
from tenfold.report.looks import Looks, single
from tenfold.report.words import count, duration, measure, moment, plain, several
from tenfold.runs import Run


def write(runs: Sequence[Run] | Comparison, path: str | Path) -> Path:
    """Write the report of one run, or of several side by side, and return where it is."""
    path = Path(path)
    page = render(runs)
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise StoreError(f"the report cannot be written to {path}: {error.strerror or error}") from None
    return path


def render(runs: Sequence[Run] | Comparison) -> str:
    """Return the report as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    comparison = runs if isinstance(runs, Comparison) else Comparison(runs)
    if not comparison.runs:
        raise StoreError("there is no run to report; `tenfold runs` lists those there are")
    loader = PackageLoader("tenfold.report", "templates")
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    content = _of_one(comparison.runs[0]) if len(comparison.runs) == 1 else _of_several(comparison)
    return pages.get_template("report.html").render(content | _of_all(comparison))


def _of_all(comparison: Comparison) -> dict[str, Any]:
    runs = comparison.runs
    many = len(runs) > 1
    files = [("csv", "text/csv", export.to_csv(runs)), ("json", "application/json", export.to_json(runs))]
    downloads = [_download(runs, f".{ending}", ending.upper(), kind, content) for ending, kind, content in files]
    table = _download(runs, "-table.csv", "Table", "text/csv", comparison.to_csv())
    return {
        "several": many,
        "written": moment(time.time()),
        "failures": comparison.failures(),
        "warnings": sections.warnings(runs),
        "fields": sections.fields(runs),
        "machines": sections.machines(runs),
        "downloads": [table, *downloads] if many else downloads,
    }


def _of_one(run: Run) -> dict[str, Any]:
    series, names = [single(run)], plots.metric_names([run])
    return {
        "title": plain(run.title),
        "runs": [_about(run, "")],
        "headline": sections.headline(run),
        "changed": sections.changed(run),
        "curves": {over: [svg for name in names if (svg := plots.curves(series, name, over))] for over in plots.AXES},
        "with_training": True,
        "time_split": plots.time_split([("", summary.times(run))]),
        "timelines": [("", svg)] if (svg := timeline.timeline(run)) else [],
    }


def _of_several(comparison: Comparison) -> dict[str, Any]:
    return {
        "title": f"{several(len(comparison.rows), 'setting')} compared",
        "runs": [_about(run, label) for run, label in settings.runs(comparison)],
        "facts": settings.facts(comparison.runs),
        "headline": settings.headline(comparison),
        "table": settings.table(comparison, Looks(comparison.rows)),
        "notes": [note for note in comparison.notes() if not note.startswith("failed: ")],
        **settings.figures(comparison),
    }


def _about(run: Run, label: str) -> dict[str, Any]:
    score = next(iter(summary.scores(run).items()), ("accuracy", None))
    return {
        "id": run.id,
        "label": label,
        "seed": run.experiment.training.seed,
        "title": plain(run.title),
        "status": run.status,
        "state": sections.state(run),
        "began": moment(run.created),
        "training": duration(run.seconds),
        "score": measure(*score),
        "speed": count(run.result.get("samples_per_second")),
        "what": [summary.model(run), summary.data(run), summary.hosts(run)],
        "epochs": sections.epochs(run),
        "happenings": sections.happenings(run),
        "command": run.facts.get("command", ""),
        "code": run.facts.get("code", ""),
    }


def _download(runs: Sequence[Run], ending: str, label: str, kind: str, content: str) -> dict[str, str]:
    numbers = "-".join(str(run.id) for run in runs[:4]) + ("-and-more" if len(runs) > 4 else "")
    encoded = base64.b64encode(content.encode()).decode()
    return {
        "name": f"tenfold-run{'s' if len(runs) > 1 else ''}-{numbers}{ending}",
        "label": label,
        "address": f"data:{kind};charset=utf-8;base64,{encoded}",
    }
