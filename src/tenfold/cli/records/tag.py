"""`tenfold tag`, `tenfold untag` and `tenfold note`: write on runs what they were for."""

from pathlib import Path
from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.completion import complete_tag
from tenfold.errors import StoreError

Tags = Annotated[list[str], typer.Argument(metavar="TAG...", help="Words without spaces.", autocompletion=complete_tag)]


def tag(run: options.Reference, tags: Tags, runs: options.Runs = None) -> None:
    """Give a run tags, by which it can be found again.

    Examples: [cyan]tenfold tag last paper[/], [cyan]tenfold tag 12 baseline mnist[/],
    [cyan]tenfold runs --filter tag=paper[/]
    """
    _change(run, runs, add=tags)


def untag(run: options.Reference, tags: Tags, runs: options.Runs = None) -> None:
    """Take tags from a run.

    Example: [cyan]tenfold untag 12 baseline[/]
    """
    _change(run, runs, remove=tags)


def note(
    run: options.Reference,
    text: Annotated[str, typer.Argument(help='The note, in quotes; "" removes it.')],
    runs: options.Runs = None,
) -> None:
    """Note something about a run; `tenfold show` prints it.

    Example: [cyan]tenfold note last "with the fan on"[/]
    """
    import tenfold

    found = tenfold.open_run(run, runs=runs)
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # in a locale without UTF-8
    found.set_note(readable.strip())
    typer.echo(f"run {found.id}: {found.note or 'no note'}")


def _change(run: str, runs: Path | None, *, add: list[str] | None = None, remove: list[str] | None = None) -> None:
    import tenfold

    found = tenfold.open_run(run, runs=runs)
    if add:
        found.tag(*add)
    if unknown := [tag for tag in remove or [] if tag not in found.tags]:
        raise StoreError(f"run {found.id} has no tag '{unknown[0]}'; it has {', '.join(found.tags) or 'none'}")
    if remove:
        found.untag(*remove)
    typer.echo(f"run {found.id}: {', '.join(found.tags) or 'no tags'}")
