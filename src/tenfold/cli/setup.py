"""Commands that prepare experiments, data or this machine: `init`, `schema`, `doctor`, `data`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenfold.cli import options
from tenfold.cli.output import fetching, print_json, print_rich, write_file
from tenfold.registry import SOURCES

if TYPE_CHECKING:
    from tenfold.machine.doctor import Finding


@options.with_fields("model", "data")
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("experiment.toml"),
    settings: options.Set = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    **fields: Any,
) -> None:
    """Write an experiment file, with a comment on every field.

    Examples: [cyan]tenfold init lenet.toml[/], [cyan]tenfold init mlp.toml --model mlp --set hidden=[128,64][/]
    """
    from tenfold.errors import ExperimentError
    from tenfold.experiment.experiment import commented

    if not force and os.path.lexists(path):
        raise ExperimentError(f"{path} exists; use --force to replace it, or choose another name")
    write_file(path, commented(options.experiment_from(None, settings, **fields)))
    typer.echo(f"wrote {path}; `tenfold train {path}` runs it")


def schema() -> None:
    """Print the JSON schema of experiment files, for editors that check and complete TOML.

    Example: [cyan]tenfold schema > experiment.schema.json[/]
    """
    from tenfold.experiment import Experiment

    print_json(Experiment.model_json_schema())


MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}


def doctor(runs: options.Runs = None, as_json: options.Json = False) -> None:
    """Check the machine (cores, threads, memory, torch, GPUs, MPI, data sets) and the recorded runs; suggest fixes.

    With --runs, also check the weights and checkpoints of all runs in that folder for damage.

    Examples: [cyan]tenfold doctor[/], [cyan]tenfold doctor --runs runs[/]
    """
    from rich.markup import escape
    from rich.table import Table

    from tenfold.data import SOURCES, available
    from tenfold.machine.doctor import Finding, examine
    from tenfold.runs.store import absolute

    findings = examine(absolute(runs))
    for item in available():
        source = SOURCES[item.name]
        here = item.where is not None or not source.files
        built_in = "ships with scikit-learn" if source.make is None else str(source.absent)
        place = str(item.where) if item.where else built_in if here else "not on this machine"
        advice = "" if here else f"`tenfold data get {item.name}` fetches it"
        findings.append(Finding(f"data: {item.name}", place, "ok" if here else "note", advice))
    findings += _examine_runs(absolute(runs), files=runs is not None)
    if as_json:
        print_json([asdict(finding) for finding in findings])
        return
    table = Table("what", "", "found", "what to do")
    for finding in findings:
        table.add_row(finding.topic, MARKS[finding.status], escape(finding.found), escape(finding.advice))
    print_rich(table)
    problems = sum(finding.status == "problem" for finding in findings)
    typer.echo("no problems found" if not problems else f"{problems} problem(s); see the last column")


def _examine_runs(folder: Path, *, files: bool) -> "list[Finding]":
    from tenfold.machine.doctor import Finding
    from tenfold.runs.maintenance import find_damage

    if not (folder / "tenfold.db").exists():
        return [Finding("runs", f"none in {folder}")]
    count, damaged = find_damage(folder, files=files)
    sound = [] if damaged else [Finding("runs", f"{count} in {folder}, none damaged")]
    return sound + [Finding(item.where, item.found, "problem", item.advice) for item in damaged]


data_app = typer.Typer(no_args_is_help=True, help="List, download and find the built-in data sets.")
Name = Annotated[
    str, typer.Argument(help=f"A data set: {', '.join(SOURCES)}.", autocompletion=options.complete_from(SOURCES))
]


@data_app.command("list")
def list_(as_json: options.Json = False) -> None:
    """List the built-in data sets and where they are. Example: [cyan]tenfold data list[/]"""
    from rich.table import Table

    from tenfold.data import available

    sources = available()
    if as_json:
        print_json([{"name": item.name, "description": item.description, "where": item.where} for item in sources])
        return
    table = Table("name", "what", "where")
    for item in sources:
        table.add_row(item.name, item.description, _place(item.name, item.where))
    print_rich(table)


@data_app.command()
def get(name: Name, quiet: options.Quiet = False, as_json: options.Json = False) -> None:
    """Download a data set unless it is already there, and verify it. Example: [cyan]tenfold data get mnist[/]"""
    from tenfold import data
    from tenfold.errors import DataError

    with fetching(quiet or as_json):
        folder = data.get(name)
    if folder is None and SOURCES[name].make is not None:
        raise DataError(f"{name} cannot be downloaded: {SOURCES[name].absent}")
    print_json({"name": name, "where": folder}) if as_json else typer.echo(f"{name}: {_place(name, folder)}, checked")


@data_app.command()
def where(name: Name, as_json: options.Json = False) -> None:
    """Print the folder of a data set. Example: [cyan]tenfold data where mnist[/]"""
    from tenfold import data
    from tenfold.errors import DataError

    folder = data.where(name)
    if folder is None and SOURCES[name].files:
        raise DataError(f"{name} is not on this machine; `tenfold data get {name}` downloads it")
    print_json({"name": name, "where": folder}) if as_json else typer.echo(_place(name, folder))


def _place(name: str, folder: object) -> str:
    if folder is not None:
        return str(folder)
    if SOURCES[name].make is not None:
        return str(SOURCES[name].absent)
    return f"not downloaded; `tenfold data get {name}`" if SOURCES[name].files else "ships with scikit-learn"
