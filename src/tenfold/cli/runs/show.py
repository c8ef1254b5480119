"""`tenfold show`: everything about one run."""

from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import print_json, print_rich


def show(
    run: options.Reference = "last",
    shards: Annotated[
        bool, typer.Option("--shards", help="Show how the training data were divided among the replicas.")
    ] = False,
    console: Annotated[bool, typer.Option("--console", help="Print what the run printed, the last 200 kB.")] = False,
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """Show one run: its experiment, its epochs, where its time went, and where its files are.

    Examples: [cyan]tenfold show 12[/], [cyan]tenfold show last --json[/], [cyan]tenfold show last --shards[/],
    [cyan]tenfold show last --console[/]
    """
    import tenfold
    from tenfold.report.tables.fold_tables import fold_tables
    from tenfold.report.tables.run_tables import shards_table, show_tables
    from tenfold.runs.store import CROSSVAL

    found = tenfold.open_run(run, runs=runs)
    if as_json:
        print_json(found.summary() | {"history": found.history, "facts": found.facts})
    elif console:
        typer.echo(found.console, nl=False)
    elif shards:
        print_rich(shards_table(found))
    else:
        print_rich(show_tables(found), *([fold_tables(found)] if found.kind == CROSSVAL else []))
