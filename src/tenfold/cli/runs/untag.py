"""`tenfold untag`: remove tags from a run."""

import typer

from tenfold.cli import options
from tenfold.errors import StoreError


def untag(run: options.Reference, tags: options.Tags, runs: options.Runs = None) -> None:
    """Remove tags from a run.

    Example: [cyan]tenfold untag 12 baseline[/]
    """
    import tenfold

    found = tenfold.open_run(run, runs=runs)
    if unknown := [tag for tag in tags if tag not in found.tags]:
        raise StoreError(f"run {found.id} has no tag '{unknown[0]}'; it has {', '.join(found.tags) or 'none'}")
    found.untag(*tags)
    typer.echo(f"run {found.id}: {', '.join(found.tags) or 'no tags'}")
