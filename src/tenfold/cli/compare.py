"""`tenfold compare`: one experiment over a grid of settings."""

import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenfold.cli import options
from tenfold.cli.output import print_rich, say_interrupted

if TYPE_CHECKING:
    from tenfold.grid import Turn

Values = str | None
GRID = "The grid: values separated by commas"
CLEAR = "\r\x1b[K"
"""Begins the terminal's line anew."""


class Form(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


def dimension(name: str, text: str) -> Any:
    """Return the option of a field that may take several values."""
    return typer.Option(f"--{name}", help=text, show_default=False, rich_help_panel=GRID, metavar="A,B,...")


def compare(
    file: options.File = None,
    settings: options.Set = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", help="Values of any field: momentum=0,0.9.", metavar="FIELD=A,B,...", rich_help_panel=GRID
        ),
    ] = None,
    workers: Annotated[Values, dimension("workers", "Replicas: 1,2,4.")] = None,
    strategy: Annotated[Values, dimension("strategy", "Who averages with whom: allreduce,butterfly.")] = None,
    sync_every: Annotated[Values, dimension("sync-every", "Steps between rounds: 1,16.")] = None,
    model: Annotated[Values, dimension("model", "Networks: lenet5,cnn.")] = None,
    data: Annotated[Values, dimension("data", "Data sets.")] = None,
    epochs: Annotated[Values, dimension("epochs", "Passes over the data.")] = None,
    batch_size: Annotated[Values, dimension("batch-size", "Samples per step.")] = None,
    optimizer: Annotated[Values, dimension("optimizer", "Optimizers: sgd,adam.")] = None,
    lr: Annotated[Values, dimension("lr", "Learning rates.")] = None,
    loader_workers: Annotated[Values, dimension("loader-workers", "Processes that load batches: 0,4.")] = None,
    threads: Annotated[Values, dimension("threads", "Threads of each worker.")] = None,
    device: Annotated[Values, dimension("device", "Devices: cpu,cuda.")] = None,
    pin: options.Pin = None,
    repeats: Annotated[int, typer.Option(help="Runs of each setting, with different seeds.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what is recorded already.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a page with plots, too.")] = None,
    form: Annotated[Form, typer.Option("--format", help="How to print the result.")] = Form.TABLE,
    as_json: options.Json = False,
    runs: options.Runs = None,
    quiet: options.Quiet = False,
) -> None:
    """Run an experiment with every combination of settings, in turns, and show them side by side.

    What is recorded already is not run again, so an interrupted comparison goes on when it is started again.

    Examples: [cyan]tenfold compare lenet.toml --workers 1,2,4 --strategy allreduce,butterfly --repeats 3[/],
    [cyan]tenfold compare --data digits --lr 0.01,0.1 --vary momentum=0,0.9 -o compare.html[/]
    """
    given = {
        "workers": workers,
        "strategy": strategy,
        "sync_every": sync_every,
        "model": model,
        "data": data,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "lr": lr,
        "loader_workers": loader_workers,
        "threads": threads,
        "device": device,
    }
    grid = {name: _values(text) for name, text in given.items() if text is not None}
    grid |= dict(_varied(text) for text in vary or [])
    experiment = options.experiment_from(file, settings, pin=pin)
    if any(isinstance(count, int) and count > 1 for count in grid.get("workers", [])):
        from tenfold.machine.crew import warm_up

        warm_up()
    from tenfold.grid import compare as run_all

    form = Form.JSON if as_json else form
    try:
        result = run_all(experiment, repeats=repeats, runs=runs, fresh=fresh, watch=None if quiet else _say, **grid)
    except KeyboardInterrupt:
        say_interrupted("the same command goes on with what is left")
        raise
    if form is Form.TABLE:
        print_rich(result)
    else:
        typer.echo({"csv": result.to_csv, "json": result.to_json, "markdown": result.to_markdown}[form](), nl=False)
    if output is not None:
        typer.echo(f"the report is in {result.report(output)}", err=form is not Form.TABLE)


def _say(turn: "Turn") -> None:
    """Print a line for each run when it is done; on a terminal, until then, which one is running."""
    from tenfold.report.summary import scores
    from tenfold.report.words import duration, measure

    line = f"{turn.place:>{len(str(turn.count))}}/{turn.count}  {turn.label}"
    terminal = sys.stderr.isatty()
    if turn.begins:
        if terminal:
            room = shutil.get_terminal_size().columns - 5
            typer.secho(f"{line[:room]} ...", err=True, nl=False, dim=True)
        return
    if turn.run is None:
        said = f"failed: {turn.error}"
    else:
        name, value = next(iter(scores(turn.run).items()), ("loss", None))
        said = "recorded already, " if turn.recorded else ""
        said += f"{duration(turn.run.seconds)} measured, {name} {measure(name, value)}"
    typer.secho(f"{CLEAR if terminal else ''}{line}: {said}", err=True, fg="red" if turn.run is None else None)


def _values(text: str) -> list[Any]:
    """Read "a,b,c", or a TOML list for values that hold commas themselves."""
    from tenfold.experiment import parse_value

    whole = parse_value(text)
    return whole if isinstance(whole, list) else [parse_value(one.strip()) for one in text.split(",")]


def _varied(text: str) -> tuple[str, list[Any]]:
    from tenfold.errors import ExperimentError
    from tenfold.experiment import FIELDS

    name, equals, values = text.partition("=")
    if not (equals and name.strip() and values.strip()):
        raise ExperimentError(f"'{text}' varies nothing; write field=a,b, such as momentum=0,0.9")
    name = name.strip().replace("-", "_")
    whole = {f"{section}.{field}": short for short, (section, field) in FIELDS.items()}
    return whole.get(name, name), _values(values.strip())
