"""`tenfold data`: the built-in data sets, where they are, and how to get them."""

from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import fetching, print_json, print_rich

app = typer.Typer(no_args_is_help=True, help="List, fetch and find the built-in data sets.")
Name = Annotated[str, typer.Argument(help="A data set: digits, mnist, fashion-mnist.")]


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
    """Fetch a data set, unless it is there, and check it. Example: [cyan]tenfold data get mnist[/]"""
    from tenfold import data

    with fetching(quiet or as_json) as progress:
        folder = data.get(name, progress)
    print_json({"name": name, "where": folder}) if as_json else typer.echo(f"{name}: {_place(name, folder)}, checked")


@app.command()
def where(name: Name, as_json: options.Json = False) -> None:
    """Print the folder of a data set. Example: [cyan]tenfold data where mnist[/]"""
    from tenfold import data
    from tenfold.errors import DataError

    folder = data.where(name)
    if folder is None and data.SOURCES[name].files:
        raise DataError(f"{name} is not on this machine; `tenfold data get {name}` fetches it")
    print_json({"name": name, "where": folder}) if as_json else typer.echo(_place(name, folder))


def _place(name: str, folder: object) -> str:
    from tenfold.data import SOURCES

    if folder is not None:
        return str(folder)
    return f"not here; `tenfold data get {name}`" if SOURCES[name].files else "ships with scikit-learn"
