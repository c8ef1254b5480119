"""`tenfold launch`: the commands that start an experiment, or a script, on several machines."""

import shlex
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tenfold.cli import options
from tenfold.cli.output import write_file
from tenfold.cli.train import train
from tenfold.errors import MachineError

if TYPE_CHECKING:
    from tenfold.experiment import Experiment
    from tenfold.launchers import Host


class Launcher(StrEnum):
    """The program that starts the processes."""

    TORCHRUN = "torchrun"
    MPIRUN = "mpirun"


def launch(
    file: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads this form for an argument that may be left out
        typer.Argument(help="An experiment file, or a script (.py) with your own training loop.", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="More arguments for `tenfold train` or the script; write -- before options.", metavar="[-- ...]"
        ),
    ] = None,
    hosts: Annotated[
        Path | None, typer.Option(help="A file with one host per line: node1 slots=4.", show_default=False)
    ] = None,
    launcher: Annotated[Launcher, typer.Option(help="The program that starts the processes.")] = Launcher.TORCHRUN,
    run: Annotated[bool, typer.Option("--run", help="Start it now, over ssh.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Write a script for sbatch instead.")] = False,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of the Slurm job. Default: 2.", min=1, show_default=False)
    ] = None,
    per_host: Annotated[
        int | None,
        typer.Option(help="Processes per host, for hosts without a number in the file.", min=1, show_default=False),
    ] = None,
    port: Annotated[
        int, typer.Option(help="The port on the first host to which all hosts connect.", min=1, max=65535)
    ] = 29500,
    python: Annotated[
        str | None,
        typer.Option(
            help="The Python interpreter on the hosts. Default: python on their path; with --run, this one.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
) -> None:
    """Show the commands that run an experiment on several machines, start them over ssh, or write a Slurm script.

    Examples: [cyan]tenfold launch lenet.toml --hosts hosts.txt[/], [cyan]tenfold launch lenet.toml --hosts hosts.txt
    --run[/], [cyan]tenfold launch lenet.toml --slurm -o lenet.sbatch[/],
    [cyan]tenfold launch own_loop.py --hosts hosts.txt --launcher mpirun -- --epochs 3[/]
    """
    if file is None:
        raise MachineError("nothing to launch; give an experiment file, or a script (.py)")
    if slurm == (hosts is not None):
        wrong = "both --hosts and --slurm were given" if slurm else "neither --hosts nor --slurm was given"
        raise MachineError(f"{wrong}; use --hosts hosts.txt for a list of hosts, or --slurm for a Slurm job")
    if slurm and (run or launcher is Launcher.MPIRUN):
        raise MachineError("--slurm writes a script that starts torchrun; give it to sbatch, without --run or mpirun")
    if hosts is not None and nodes is not None:
        raise MachineError("--nodes is for --slurm; with --hosts, the file lists the machines")
    from tenfold import launchers

    more = arguments or []
    experiment = _experiment(file, more)
    workers, what = experiment.parallel.workers if experiment else 1, launchers.program(file, more)
    if hosts is None:
        script, nodes = output or file.with_suffix(".sbatch"), nodes or 2
        if output is None and script.exists():
            raise MachineError(f"{script} exists; use -o {script} to replace it, or -o with another name")
        write_file(script, _slurm_script(what, file.stem, experiment, nodes, per_host, port=port, python=python))
        typer.echo(f"wrote {script}; `sbatch {script}` queues it")
        return
    parsed = launchers.read_hosts(hosts, per_host or 1)
    _check_workers(workers, "the hosts", sum(host.slots for host in parsed))
    python = python or (sys.executable if run else None)
    if launcher is Launcher.TORCHRUN:
        commands = launchers.torchrun(parsed, what, port=port, name=file.stem, python=python)
    else:
        commands = [(launchers.Host("localhost"), launchers.mpirun(parsed, what, python=python))]
    text = "".join(f"# on {host.name}\n{shlex.join(command)}\n" for host, command in commands)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_file(output, text)
        typer.echo(f"wrote {output}; it has the command of each host")
    if run:
        raise typer.Exit(_run(commands))


def _experiment(file: Path, more: list[str]) -> "Experiment | None":
    """Read the experiment as `tenfold train` will, to find mistakes here and not on every host; leave scripts alone."""
    if file.suffix != ".py":
        reader = typer.Typer(add_completion=False)
        reader.command()(train)
        given = typer.main.get_command(reader).make_context("train", [str(file), *more]).params
        fields = {name: given[name] for name in options.OF_TRAINING}
        return options.experiment_from(given["file"], given["settings"], **fields)
    if not file.is_file():
        raise MachineError(f"there is no script {file}; give an experiment file or a script")
    return None


def _slurm_script(
    what: list[str],
    name: str,
    experiment: "Experiment | None",
    nodes: int,
    per_host: int | None,
    *,
    port: int,
    python: str | None,
) -> str:
    from tenfold import launchers

    workers = experiment.parallel.workers if experiment else 1
    if per_host is not None:
        _check_workers(workers, f"{nodes} nodes", nodes * per_host)
    return launchers.slurm(
        what,
        name=name,
        nodes=nodes,
        per_node=per_host or launchers.share_out(workers, nodes),
        threads=(experiment.machine.threads if experiment else None) or 1,
        gpus=experiment is not None and experiment.machine.device.startswith("cuda"),
        port=port,
        python=python,
    )


def _check_workers(workers: int, place: str, there: int) -> None:
    if workers not in (1, there):
        raise MachineError(
            f"the experiment has {workers} workers, but {place} have {there} slots in total; "
            f"make them equal, or leave `workers` out of the file"
        )


def _run(commands: "list[tuple[Host, list[str]]]") -> int:
    """Run the commands to their end; a signal that ends this process ends them, too."""
    from tenfold.launchers import run_everywhere

    def say(host: str, line: str) -> None:
        typer.echo(f"[{host}] {line}")

    handled = [
        item for item in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(item) is not signal.SIG_IGN
    ]  # nohup
    before = {item: signal.signal(item, _leave) for item in handled}
    try:
        return run_everywhere(commands, Path.cwd(), say)
    finally:
        for item, handler in before.items():
            signal.signal(item, handler)


def _leave(number: int, _: Any) -> None:
    raise SystemExit(128 + number)
