"""`tenfold report`: one HTML page about one run or several."""

from pathlib import Path
from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import print_json


def report(
    references: Annotated[
        list[str] | None, typer.Argument(metavar="RUN...", help="Runs, by number, title or last.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """Write one self-contained HTML page with plots, tables and the numbers to download.

    Examples: [cyan]tenfold report last[/], [cyan]tenfold report 3 4 5 -o compare.html[/]
    """
    import tenfold
    from tenfold.report.pages.report import write_report

    found = [tenfold.open_run(reference, runs=runs) for reference in references or ["last"]]
    path = write_report(found, output)
    if as_json:
        print_json({"path": str(path), "runs": [run.id for run in found]})
    else:
        typer.echo(f"the report is in {path}")
