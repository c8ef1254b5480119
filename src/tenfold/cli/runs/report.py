"""`tenfold report`: one HTML page about one run or several."""

from pathlib import Path
from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import print_json
from tenfold.errors import ExperimentError, StoreError


def report(
    references: options.References = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write.", callback=options.check_report)
    ] = Path("report.html"),
    columns: options.Columns = None,
    select: options.Select = False,
    chosen: options.Filter = "",
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """Write an HTML report, one self-contained file with plots, tables and data to download.

    Examples: [cyan]tenfold report last[/], [cyan]tenfold report 3 4 5 -o compare.html[/],
    [cyan]tenfold report 3 4 5 --columns test_accuracy,seconds,speedup[/],
    [cyan]tenfold report --filter "tag=paper status=finished" -o paper.html[/]
    """
    import tenfold
    from tenfold.report.pages.write_report import write_report
    from tenfold.report.results.comparison import Comparison
    from tenfold.runs.store import FOLD

    found = [tenfold.open_run(reference, runs=runs) for reference in references or ([] if chosen else ["last"])]
    if chosen:
        named = {run.id for run in found}
        selected = tenfold.list_runs(runs=runs, filter=chosen)
        found += [run for run in selected if run.kind != FOLD and run.id not in named]
    if not found:
        raise StoreError(f"no runs match {chosen}")
    if len(found) == 1 and (columns or select):
        raise ExperimentError("--columns and --select are for the table of several runs; name at least two")
    comparison = Comparison(found)
    comparison = comparison.select() if select else comparison
    path = write_report(comparison.with_columns(*options.split_names(columns)) if columns else comparison, output)
    if as_json:
        print_json({"path": str(path), "runs": [run.id for run in found]})
    else:
        typer.echo(f"the report is in {path}")
