"""Commands that prepare an experiment or check this machine: `init`, `schema`, `doctor`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import print_json, print_rich, write_file

if TYPE_CHECKING:
    from tenfold.machine.doctor import Finding


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
    from tenfold.experiment.experiment import commented

    if not force and os.path.lexists(path):
        raise ExperimentError(f"{path} exists; name another file, or replace it with --force")
    write_file(path, commented(options.experiment_from(None, settings, model=model, data=data)))
    typer.echo(f"wrote {path}; `tenfold train {path}` runs it")


def schema() -> None:
    """Print the JSON schema of experiment files, for editors that check and complete TOML.

    Example: [cyan]tenfold schema > experiment.schema.json[/]
    """
    from tenfold.experiment import Experiment

    print_json(Experiment.model_json_schema())


MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}


def doctor(runs: options.Runs = None, as_json: options.Json = False) -> None:
    """Check the machine (cores, threads, memory, torch, GPUs, MPI, data sets) and the recorded runs, and suggest fixes.

    With --runs, the weights and checkpoints of all runs in that folder are read and checked for damage, too.

    Examples: [cyan]tenfold doctor[/], [cyan]tenfold doctor --runs runs[/]
    """
    from rich.markup import escape
    from rich.table import Table

    from tenfold.data import SOURCES, available
    from tenfold.machine.doctor import Finding, examine
    from tenfold.runs.store import absolute

    findings = examine(absolute(runs))
    for one in available():
        source = SOURCES[one.name]
        here = one.where is not None or not source.files
        built_in = "ships with scikit-learn" if source.make is None else str(source.absent)
        found = str(one.where) if one.where else built_in if here else "not on this machine"
        advice = "" if here else f"`tenfold data get {one.name}` fetches it"
        findings.append(Finding(f"data: {one.name}", found, "ok" if here else "note", advice))
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
    from tenfold.runs.storage.damage import find_damage

    if not (folder / "tenfold.db").exists():
        return [Finding("runs", f"none in {folder}")]
    count, damaged = find_damage(folder, files=files)
    sound = [] if damaged else [Finding("runs", f"{count} in {folder}, none damaged")]
    return sound + [Finding(one.where, one.found, "problem", one.advice) for one in damaged]
