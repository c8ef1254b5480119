"""`tenfold runs`: list the recorded runs."""

from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import print_json, print_rich


def runs(
    last: Annotated[int, typer.Option("--last", "-n", help="How many, newest last; 0 for all.")] = 20,
    folds: Annotated[bool, typer.Option("--folds", help="List the folds of cross-validations, too.")] = False,
    chosen: options.Filter = "",
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """List the recorded runs, newest last; the folds of a cross-validation only with --folds.

    Examples: [cyan]tenfold runs[/], [cyan]tenfold runs -n 0 --json[/], [cyan]tenfold runs --folds[/],
    [cyan]tenfold runs --filter "workers>=4 strategy=butterfly,ring accuracy>97%"[/],
    [cyan]tenfold runs -f "tag=paper age<7d"[/]
    """
    from tenfold.api.open_run import list_runs, newest_runs
    from tenfold.runs.store import FOLD

    if last > 0 and not chosen:
        shown, total = newest_runs(last, runs=runs, folds=folds)
    else:
        recorded = [run for run in list_runs(runs=runs, filter=chosen) if folds or run.kind != FOLD]
        shown, total = recorded[-last:] if last > 0 else recorded, len(recorded)
    if as_json:
        print_json([run.summary() for run in shown])
        return
    if chosen and not shown:
        typer.echo(f"no runs match {chosen}")
        return
    from tenfold.report.tables.run_tables import runs_table

    print_rich(runs_table(shown))
    if len(shown) < total:
        typer.echo(f"{len(shown)} of {total} runs; `tenfold runs -n 0` lists all")
