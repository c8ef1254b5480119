"""`tenfold tag`: add tags to a run."""

import typer

from tenfold.cli import options


def tag(run: options.Reference, tags: options.Tags, runs: options.Runs = None) -> None:
    """Add tags to a run, by which it can be found again.

    Examples: [cyan]tenfold tag last paper[/], [cyan]tenfold tag 12 baseline mnist[/],
    [cyan]tenfold runs --filter tag=paper[/]
    """
    import tenfold

    found = tenfold.open_run(run, runs=runs)
    found.tag(*tags)
    typer.echo(f"run {found.id}: {', '.join(found.tags) or 'no tags'}")
