"""How verbs speak: tables and sentences for people, JSON for programs."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from tenfold.data import Progress
    from tenfold.runs import Run


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=2, default=str))


def print_rich(*renderables: Any) -> None:
    """Print tables; not cut off at 80 columns when the output goes to a file or a pipe."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(*renderables, sep="\n")


def print_run(run: "Run", as_json: bool) -> None:
    """Print what came out of a run, and exit with 2 if something of it could not be kept."""
    from tenfold.report.tables import result_table

    if as_json:
        print_json(run.summary())
    else:
        print_rich(result_table(run))
        typer.echo(f"run {run.id} is in {run.path}; `tenfold report {run.id}` makes a page of it")
    if run.result.get("problem"):
        typer.secho(f"error: not everything was kept: {run.result['problem']}", err=True, fg="red")
        raise typer.Exit(2)


@contextmanager
def resumable(how: str = "`tenfold resume last` goes on from the last whole epoch") -> Iterator[None]:
    """On Ctrl-C, say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.secho(f"interrupted; {how}", err=True, fg="yellow")
        raise


@contextmanager
def fetching(quiet: bool = False) -> Iterator["Progress"]:
    """Show the progress of a download, if there is one."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    with Progress(
        TextColumn("fetching {task.description}"),
        BarColumn(),
        DownloadColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    ) as display:
        tasks: dict[str, Any] = {}

        def show(done: int, total: int | None, name: str) -> None:
            if name not in tasks:
                tasks[name] = display.add_task(name, total=total)
            display.update(tasks[name], completed=done, total=total)

        yield show
