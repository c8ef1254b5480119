"""`tenfold remove`: remove runs, after asking."""

from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import print_json


def remove(
    references: options.References = None,
    chosen: options.Filter = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    empty: Annotated[bool, typer.Option("--empty-trash", help="Delete the folders of removed runs for good.")] = False,
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """Remove runs from the list, and move their folders to the trash folder beside them.

    A cross-validation goes with its folds. What is in the trash keeps its weights and a record of its events.

    Examples: [cyan]tenfold remove 12 13[/], [cyan]tenfold remove --filter "status=failed age>7d" --yes[/],
    [cyan]tenfold remove --empty-trash[/]
    """
    import tenfold
    from tenfold.common.files import short_path
    from tenfold.errors import ExperimentError
    from tenfold.report.formatting import byte_size, plural
    from tenfold.runs import Store
    from tenfold.runs.storage.removal import empty_trash, remove_run, to_remove, trash_folder, trash_size

    if not (references or chosen or empty):
        raise ExperimentError("remove which runs? give their numbers, or --filter, or --empty-trash")
    store = Store(runs, create=False)
    records = [store.find(reference) for reference in references or []]
    if chosen:
        selected = tenfold.list_runs(runs=runs, filter=chosen)
        records += [store.find(run.id) for run in selected if run.kind != "fold"]
    removed = {one["id"]: one for record in records for one in to_remove(store, record)}
    if removed and not yes:
        for one in removed.values():
            typer.echo(f"  run {one['id']}  {one['title']}  {one['status']}", err=True)
        _ask(f"remove {'this run' if len(removed) == 1 else f'these {len(removed)} runs'}?", "nothing was removed")
    for one in removed.values():
        remove_run(store, one)
    folders, size = trash_size(store)
    if empty and folders and not yes:
        _ask(f"delete {plural(folders, 'folder')} in the trash, {byte_size(size)}, for good?", "nothing was deleted")
    deleted, freed = empty_trash(store) if empty else (0, 0)
    if as_json:
        print_json({"removed": list(removed), "trash": str(trash_folder(store)), "freed_bytes": freed})
        return
    if removed or not empty:
        now = f"; {'it is' if len(removed) == 1 else 'they are'} in {short_path(trash_folder(store))}"
        typer.echo(f"removed {plural(len(removed), 'run')}{now if removed and not empty else ''}")
    if empty:
        typer.echo(f"emptied the trash: {plural(deleted, 'folder')}, {byte_size(freed)}")


def _ask(question: str, otherwise: str) -> None:
    """Ask for confirmation; if the answer is no, say that nothing was done and exit with 1."""
    try:
        answered = typer.confirm(question, err=True)
    except typer.Abort:  # nobody there to answer
        typer.echo("", err=True)
        answered = False
    if not answered:
        typer.echo(f"{otherwise}; --yes does it without asking", err=True)
        raise typer.Exit(1)
