"""`tenfold data`: the built-in data sets, where they are, and how to get them."""

from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.options import complete_from
from tenfold.cli.output import fetching, print_json, print_rich
from tenfold.common.catalog import SOURCES

app = typer.Typer(no_args_is_help=True, help="List, download and find the built-in data sets.")
Name = Annotated[str, typer.Argument(help=f"A data set: {', '.join(SOURCES)}.", autocompletion=complete_from(SOURCES))]


@app.command("list")
def list_(as_json: options.Json = False) -> None:
    """List the built-in data sets and where they are. Example: [cyan]tenfold data list[/]"""
    from rich.table import Table

    from tenfold.data import available

    found = available()
    if as_json:
        print_json([{"name": one.name, "description": one.description, "where": one.where} for one in found])
        return
    table = Table("name", "what", "where")
    for one in found:
        table.add_row(one.name, one.description, _place(one.name, one.where))
    print_rich(table)


@app.command()
def get(name: Name, quiet: options.Quiet = False, as_json: options.Json = False) -> None:
    """Download a data set unless it is already there, and verify it. Example: [cyan]tenfold data get mnist[/]"""
    from tenfold import data
    from tenfold.errors import DataError

    with fetching(quiet or as_json) as progress:
        folder = data.get(name, progress)
    if folder is None and SOURCES[name].make is not None:
        raise DataError(f"{name} cannot be downloaded: {SOURCES[name].absent}")
    print_json({"name": name, "where": folder}) if as_json else typer.echo(f"{name}: {_place(name, folder)}, checked")


@app.command()
def where(name: Name, as_json: options.Json = False) -> None:
    """Print the folder of a data set. Example: [cyan]tenfold data where mnist[/]"""
    from tenfold import data
    from tenfold.errors import DataError

    folder = data.where(name)
    if folder is None and SOURCES[name].files:
        raise DataError(f"{name} is not on this machine; `tenfold data get {name}` fetches it")
    print_json({"name": name, "where": folder}) if as_json else typer.echo(_place(name, folder))


def _place(name: str, folder: object) -> str:
    if folder is not None:
        return str(folder)
    if SOURCES[name].make is not None:
        return str(SOURCES[name].absent)
    return f"not downloaded; `tenfold data get {name}`" if SOURCES[name].files else "ships with scikit-learn"
