"""`tenfold init`: write a commented experiment file."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import write_file


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("experiment.toml"),
    settings: options.Set = None,
    model: options.Model = None,
    data: options.Data = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write an experiment file with a comment on every field.

    Examples: [cyan]tenfold init lenet.toml[/], [cyan]tenfold init mlp.toml --model mlp --set hidden=[128,64][/]
    """
    from tenfold.errors import ExperimentError
    from tenfold.experiment.template import commented

    if not force and os.path.lexists(path):
        raise ExperimentError(f"{path} exists; name another file, or replace it with --force")
    write_file(path, commented(options.experiment_from(None, settings, model=model, data=data)))
    typer.echo(f"wrote {path}; `tenfold train {path}` runs it")
