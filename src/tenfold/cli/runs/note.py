"""`tenfold note`: add a note to a run."""

from typing import Annotated

import typer

from tenfold.cli import options


def note(
    run: options.Reference,
    text: Annotated[str, typer.Argument(help='The note, in quotes; "" removes it.')],
    runs: options.Runs = None,
) -> None:
    """Add a note to a run, in place of the last one; `tenfold show` prints it.

    Example: [cyan]tenfold note last "with the fan on"[/]
    """
    import tenfold

    found = tenfold.open_run(run, runs=runs)
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # in a locale without UTF-8
    found.set_note(readable.strip())
    typer.echo(f"run {found.id}: {found.note or 'no note'}")
