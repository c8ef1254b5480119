"""The output of commands: tables and sentences for people, JSON for programs."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from tenfold.errors import MachineError, StoreError, WorkerLost

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from tenfold.reports.display import Display
    from tenfold.runs import Run
    from tenfold.runs.events import Emit, Event


PARTIAL = 3
"""The exit code of a command that did only a part of its work: some folds or runs failed."""


signals_received: list[int] = []
"""The signals that asked this command to end: SIGINT (Ctrl-C) or SIGTERM."""


class Terminated(KeyboardInterrupt):
    """SIGTERM asked this command to end; it stops as after Ctrl-C."""


def interruption_code() -> int:
    """Return the exit code after a signal, as shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (signals_received[0] if signals_received else signal.SIGINT)


def launched_rank() -> int | None:
    """Return this process's rank among those that a launcher started; None without a launcher."""
    from tenfold.launchers import detect_world

    world = detect_world()
    return None if world is None or world.size == 1 else world.rank


def prefix() -> str:
    """Return the prefix of each line that a rank other than 0 prints; "" for rank 0."""
    try:
        rank = launched_rank()
    except MachineError:  # the command that needs the launcher's variables reports it
        return ""
    return f"[rank {rank}] " if rank else ""


def start_early() -> None:
    """Start the server that workers are forked from, which imports torch while this process does."""
    from tenfold.workers.fork_server import start_server

    start_server()


def print_json(value: Any) -> None:
    from tenfold.common.files import json_text

    typer.echo(json_text(value, indent=2, default=str))


def print_rich(*renderables: Any) -> None:
    """Print tables; not cut off at 80 columns when the output goes to a file or a pipe."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(*renderables, sep="\n")


def write_file(path: Path, content: str | bytes) -> None:
    from tenfold.common.files import write_atomically

    try:
        write_atomically(path, content if isinstance(content, bytes) else content.encode(), named_by_user=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None


def print_run(run: "Run", as_json: bool, report: Path | None = None) -> None:
    """Print the result of a run, and write its report; only rank 0 does so.

    The command exits with 2 if a part of the result could not be stored, and with 3 if some folds failed.
    """
    if launched_rank():
        return
    from tenfold.reports.run_tables import fold_tables, run_summary_table, script_tables
    from tenfold.runs.store import CROSSVAL

    if as_json:
        print_json(run.summary())
    else:
        folds = [fold_tables(run)] if run.kind == CROSSVAL else []
        print_rich(run_summary_table(run), *folds, *(table.to_rich() for table in script_tables(run)))
        if report is None:
            typer.echo(f"`tenfold report {run.id}{_elsewhere(run.store.folder)}` writes an HTML report")
    if report is not None:
        from tenfold.reports.pages.run_pages import write_report

        typer.echo(f"the report is in {write_report([run], report)}", err=as_json)
    if run.result.get("problem"):
        typer.secho(f"error: not everything was saved: {run.result['problem']}", err=True, fg="red")
        raise typer.Exit(2)
    failed = run.result.get("failed")
    if failed:
        count = f"{len(failed)} of {len(run.result['folds'])} folds"
        exit_partial(f"{count} failed; `tenfold resume {run.id}{_elsewhere(run.store.folder)}` trains them again")


def exit_partial(what: str) -> NoReturn:
    """Say what failed, and exit with the code for a result that is only partial."""
    typer.secho(f"error: {what}", err=True, fg="red")
    raise typer.Exit(PARTIAL)


@contextmanager
def following(display: "Display", runs: Path | None, quiet: bool, on: object = None) -> Iterator["Emit"]:
    """Show a run while it trains: yield its listener, and show the progress of a download.

    When the run is interrupted, say how to resume it, after the display has closed, which would erase the message.
    """
    from tenfold.runs.events import Recorded

    number: int | None = None

    def listen(event: "Event") -> None:
        nonlocal number
        if isinstance(event, Recorded):
            number = event.run
        display.listen(event)

    try:
        with display, fetching(quiet):
            yield listen
    except (KeyboardInterrupt, WorkerLost) as error:
        if number is None or launched_rank():
            raise
        how = f"`tenfold resume {number}{_elsewhere(runs)}` continues from the last completed epoch"
        if isinstance(error, KeyboardInterrupt):
            exit_interrupted(how, on)
        print_interrupted(how)
        raise


def exit_interrupted(how: str, on: object = None) -> NoReturn:
    """Say that the command was interrupted and what to do now, and exit.

    If an executor's jobs continue without this command, a person on a terminal is asked whether to stop them.
    """
    if (left := getattr(on, "left", None)) is not None:
        asks = sys.stdin.isatty() and sys.stderr.isatty() and signal.SIGTERM not in signals_received
        if asks and not typer.confirm(
            f"jobs {left.numbers} of {left.name} are under way: leave them running?", default=True, err=True
        ):
            left.cancel_all()
        else:
            how = f"{how}; jobs {left.numbers} of {left.name} continue meanwhile (to stop them: {left.how_to_stop})"
    print_interrupted(how)
    raise typer.Exit(interruption_code()) from None


def print_interrupted(how: str) -> None:
    what = "ended by SIGTERM" if signal.SIGTERM in signals_received else "interrupted"
    typer.secho(f"{what}; {how}", err=True, fg="yellow")


def _elsewhere(runs: Path | None) -> str:
    """Return the option that names the run store; "" for the default one."""
    from tenfold.common.files import short_path
    from tenfold.runs.store import absolute

    return "" if absolute(runs) == absolute() else f" --runs {short_path(absolute(runs))}"


@contextmanager
def fetching(quiet: bool = False) -> Iterator[None]:
    """Show the progress of a download, if there is one."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn

    from tenfold.data import showing_downloads

    with _progress(quiet, TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn()) as display:
        tasks: dict[str, Any] = {}

        def show(done: int, total: int | None, name: str) -> None:
            if name not in tasks:
                tasks[name] = display.add_task(name, total=total)
            display.update(tasks[name], completed=done, total=total)

        with showing_downloads(show):
            yield


@contextmanager
def showing_progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show the measurement in progress, and how long it has taken so far."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    described = TextColumn("{task.description}", markup=False)
    with _progress(quiet, SpinnerColumn(), TimeElapsedColumn(), described) as display:
        task = display.add_task("preparing", total=None)
        yield lambda what: display.update(task, description=what)


def _progress(quiet: bool, *columns: "ProgressColumn") -> "Progress":
    from rich.console import Console
    from rich.progress import Progress

    hidden = quiet or not sys.stderr.isatty()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden)


UsageError: Any = typer.BadParameter.__base__
"""Typer exports only this one of its usage errors, whose base class they share."""
ELSEWHERE = {
    ("train", "--folds"): "`tenfold crossval --folds 5` trains and validates on folds",
    ("simulate", "--folds"): "`tenfold simulate --set folds=5` cross-validates on a virtual cluster",
    ("resume", "--set"): "a run keeps its settings; `tenfold train` starts another from its experiment.toml",
    ("runs", "--workers"): "`tenfold compare --workers 1,2,4` compares runs",
}
"""Options that belong to another command."""


def usage_sentence(error: Any, command: str | None = None) -> str:
    """Return the mistake in a command line; "" for the error that shows the help when nothing was given.

    `command` is the one that was being read, for errors that do not say.
    """
    message = error.format_message().strip().rstrip(".")
    if not message or "\n" in message:
        return ""
    names = _names(error.ctx) or ([command] if command else [])
    option = str(getattr(error, "option_name", ""))
    if names and (names[-1], option) in ELSEWHERE:
        return f"{names[-1]} has no {option}; {ELSEWHERE[names[-1], option]}"
    if option and (field := _field(option, error.ctx)):
        return f"no such option: {option}; {field} is a field of experiments: --set {field}=VALUE"
    param = getattr(error, "param", None)
    if param is not None and not message.startswith("Missing"):
        opts = [option for option in param.opts if option.startswith("-")]
        return f"{opts[0] if opts else param.name}: {_plain(error.message)}"
    near = getattr(error, "possibilities", None)
    if near:
        return f"no such option: {option}; did you mean {' or '.join(near)}?"
    sentence = f"{message[0].lower()}{message[1:]}".replace(". Did you", "; did you")
    return sentence if sentence.endswith("?") else f"{sentence}; see `{' '.join(['tenfold', *names, '--help'])}`"


def _field(option: str, context: Any) -> str:
    """Return the field that an option looks like, where the command has `--set`; else ""."""
    if context is None or not any("--set" in param.opts for param in context.command.params):
        return ""
    from tenfold.experiment import FIELDS

    name = option.lstrip("-").replace("-", "_")
    return name if name in FIELDS else ""


def _plain(message: str) -> str:
    """Return the mistake in a value, without the words of the library that read it."""
    message = message.removeprefix("Value error, ").removeprefix("Input ").partition(", unable to parse")[0].rstrip(".")
    for theirs, ours in {"a valid integer": "a whole number", "a valid number": "a number"}.items():
        message = message.replace(theirs, ours)
    return message


def _names(context: Any) -> list[str]:
    """Return the command that was being read, with the one it is part of, such as ["data", "get"]."""
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return names
