"""`tenfold report`: one HTML page about one run or several."""

from pathlib import Path
from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.completion import complete_run
from tenfold.cli.output import print_json


def report(
    references: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Runs by number or title, or last.", autocompletion=complete_run),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """Write an HTML report, one self-contained file with plots, tables and data to download.

    Examples: [cyan]tenfold report last[/], [cyan]tenfold report 3 4 5 -o compare.html[/]
    """
    import tenfold
    from tenfold.report.pages.write_report import write_report

    found = [tenfold.open_run(reference, runs=runs) for reference in references or ["last"]]
    path = write_report(found, output)
    if as_json:
        print_json({"path": str(path), "runs": [run.id for run in found]})
    else:
        typer.echo(f"the report is in {path}")
