"""The report of one run, or of several runs side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.errors import StoreError
from tenfold.report import clocks
from tenfold.report.exports import export
from tenfold.report.pages import sections
from tenfold.report.pages.comparison_page import comparison_content
from tenfold.report.pages.page import download_link, render_template, save_page
from tenfold.report.pages.run_page import run_content
from tenfold.report.results.comparison import Comparison
from tenfold.report.tables.fold_tables import failed_folds
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL


def write_report(runs: Sequence[Run] | Comparison, path: str | Path) -> Path:
    """Write the report of one or several runs to an HTML file, and return its path."""
    return save_page(render_report(runs), path)


def render_report(runs: Sequence[Run] | Comparison) -> str:
    """Return the report of one or several runs as HTML."""
    comparison = runs if isinstance(runs, Comparison) else Comparison(runs)
    if not comparison.runs:
        raise StoreError("there is no run to report; `tenfold runs` lists the recorded ones")
    content = run_content(comparison.runs[0]) if len(comparison.runs) == 1 else comparison_content(comparison)
    return render_template("runs.html", common_content(comparison) | content | {"downloads": _downloads(comparison)})


def common_content(comparison: Comparison) -> dict[str, Any]:
    """Return what the pages of one run and of several have in common."""
    runs = comparison.runs
    many = len(runs) > 1
    each = ", each in its own run" if many and clocks.clock_names(runs) == clocks.MEASURED else ""
    return {
        "several": many,
        "folded": any(run.kind == CROSSVAL for run in runs),
        "clock": clocks.clock_names(runs),
        "truth": clocks.page_statement(runs) + each,
        "failures": comparison.failures() + ([] if many else failed_folds(runs[0])),
        "warnings": sections.warning_list(runs),
        "fields": sections.common_fields(runs),
        "machines": sections.machine_facts(runs),
    }


def _downloads(comparison: Comparison) -> list[dict[str, str]]:
    """Return the files that a report carries inside."""
    runs = comparison.runs
    many = len(runs) > 1
    numbers = "-".join(str(run.id) for run in runs[:4]) + ("-and-more" if len(runs) > 4 else "")
    name = f"tenfold-run{'s' if many else ''}-{numbers}"
    downloads = [
        download_link(f"{name}.csv", "CSV", export.to_csv(runs)),
        download_link(f"{name}.json", "JSON", export.to_json(runs)),
    ]
    table = download_link(f"{name}-table.csv", "Table", comparison.to_csv(), "The table of settings as CSV")
    return [table, *downloads] if many else downloads
