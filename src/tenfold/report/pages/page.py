"""One page that shows runs to others: a single file that fetches nothing, reads well anywhere and prints."""

import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.common.files import write_atomically
from tenfold.errors import StoreError
from tenfold.report import clocks, export, summary
from tenfold.report.formatting import count, measure, moment, plain, several
from tenfold.report.pages import comparison_page as settings
from tenfold.report.pages import sections
from tenfold.report.plots import fold_plots as folds
from tenfold.report.plots import run_plots as plots
from tenfold.report.plots import timeline
from tenfold.report.plots.styles import Looks, single
from tenfold.report.results.comparison import Comparison
from tenfold.report.tables import fold_tables
from tenfold.runs import Run
from tenfold.runs.store import FOLDED


def write(runs: Sequence[Run] | Comparison, path: str | Path) -> Path:
    """Write the report of one run, or of several side by side, and return where it is."""
    return save(render(runs), path)


def save(page: str, path: str | Path) -> Path:
    """Write a page to a file, and return where it is."""
    path = Path(path)
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise StoreError(f"the report cannot be written to {path}: {error.strerror or error}") from None
    return path


def render(runs: Sequence[Run] | Comparison) -> str:
    """Return the report as HTML."""
    comparison = runs if isinstance(runs, Comparison) else Comparison(runs)
    if not comparison.runs:
        raise StoreError("there is no run to report; `tenfold runs` lists those there are")
    content = _of_one(comparison.runs[0]) if len(comparison.runs) == 1 else _of_several(comparison)
    return fill("report.html", _of_all(comparison) | content)


def fill(template: str, content: dict[str, Any]) -> str:
    """Return a page: a template, with the few things that every page shows and what is its own."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("tenfold.report.pages", "templates")
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    common = {"written": moment(time.time()), "eyebrow": "", "status": "", "headline": [], "downloads": []}
    return pages.get_template(template).render(common | content)


def download(name: str, label: str, content: str, about: str = "") -> dict[str, str]:
    """Return a file that a page carries with it."""
    kind = {"csv": "text/csv"}.get(name.rpartition(".")[2], "application/json")
    encoded = base64.b64encode(content.encode()).decode()
    address = f"data:{kind};charset=utf-8;base64,{encoded}"
    return {"name": name, "label": label, "about": about or f"All numbers as {label}", "address": address}


def _of_all(comparison: Comparison) -> dict[str, Any]:
    runs = comparison.runs
    many = len(runs) > 1
    numbers = "-".join(str(run.id) for run in runs[:4]) + ("-and-more" if len(runs) > 4 else "")
    name = f"tenfold-run{'s' if many else ''}-{numbers}"
    downloads = [
        download(f"{name}.csv", "CSV", export.to_csv(runs)),
        download(f"{name}.json", "JSON", export.to_json(runs)),
    ]
    table = download(f"{name}-table.csv", "Table", comparison.to_csv(), "The table of settings as CSV")
    return {
        "several": many,
        "folded": any(run.kind == FOLDED for run in runs),
        "clock": clocks.of(runs),
        "truth": clocks.truth(runs) + (", each in its own run" if many and clocks.of(runs) == clocks.MEASURED else ""),
        "failures": comparison.failures() + ([] if many else fold_tables.failures(runs[0])),
        "warnings": sections.warnings(runs),
        "fields": sections.fields(runs),
        "machines": sections.machines(runs),
        "downloads": [table, *downloads] if many else downloads,
    }


def _of_one(run: Run) -> dict[str, Any]:
    series, names = [single(run)], plots.metric_names([run])
    about = _about(run, "")
    return {
        "title": plain(run.title),
        "eyebrow": f"run {run.id}",
        "status": run.status,
        "facts": [*about["what"], about["began"]],
        "runs": [about],
        "headline": sections.headline(run),
        "changed": sections.changed(run),
        "folds": folds.section(run),
        "foretold": summary.foretold(run),
        "losses": summary.losses(run),
        "curves": {over: [svg for name in names if (svg := plots.curves(series, name, over))] for over in plots.OVER},
        "with_training": True,
        "time_split": plots.time_split([("", summary.times(run))], run.clock),
        "timelines": [("", svg)] if (svg := timeline.timeline(run)) else [],
    }


def _of_several(comparison: Comparison) -> dict[str, Any]:
    return {
        "title": f"{several(len(comparison.rows), 'setting')} compared",
        "runs": [_about(run, label) for run, label in settings.runs(comparison)],
        "facts": settings.facts(comparison.runs),
        "headline": settings.headline(comparison),
        "table": settings.table(comparison, Looks(comparison.rows)),
        "crosstables": comparison.crosstables(),
        "folds": None,
        "foretold": settings.foretold(comparison.rows),
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
        "training": clocks.training(run),
        "score": measure(*score),
        "speed": f"{count(run.result.get('samples_per_second'))} {run.clock}",
        "what": [summary.model(run), summary.data(run), summary.hosts(run)],
        "epochs": sections.epochs(run),
        "happenings": sections.happenings(run),
        "command": run.facts.get("command", ""),
        "code": run.facts.get("code", ""),
    }
