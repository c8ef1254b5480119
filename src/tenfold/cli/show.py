"""`tenfold show`: everything about one run."""

from tenfold.cli import options
from tenfold.cli.output import print_json, print_rich


def show(run: options.Reference = "last", runs: options.Runs = None, as_json: options.Json = False) -> None:
    """Show one run: its experiment, its epochs, where its time went, and where its files are.

    Examples: [cyan]tenfold show 12[/], [cyan]tenfold show last --json[/]
    """
    from tenfold import api
    from tenfold.report.tables import show_tables

    found = api.open_run(run, runs=runs)
    if as_json:
        print_json(found.summary() | {"history": found.history, "facts": found.facts})
    else:
        print_rich(show_tables(found))
