"""The command line: one file per command, which parses, calls and shows. Heavy imports wait until a command runs."""

import errno
import os
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from tenfold.cli.output import (
    Terminated,
    UsageError,
    exit_interrupted,
    interruption_code,
    launched_rank,
    prefix,
    print_interrupted,
    signals_received,
    usage_sentence,
)
from tenfold.errors import TenfoldError
from tenfold.machine import cores
from tenfold.registry import installed, load, package_of


class Commands(TyperGroup):
    """Turns errors that are written for the user, and those of the parser, into sentences and exit code 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            _refuse(usage_sentence(error), error)

    def invoke(self, ctx: Any) -> Any:
        warnings.showwarning = _show_warning
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            return super().invoke(ctx)
        except TenfoldError as error:
            _refuse(str(error))
        except UsageError as error:
            _refuse(usage_sentence(error, ctx.invoked_subcommand), error)
        except KeyboardInterrupt:
            if launched_rank():
                raise typer.Exit(interruption_code()) from None
            exit_interrupted("nothing was recorded")
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, SystemExit) as error:  # a model or a dataset may call sys.exit
            from tenfold.common.imports import describe_error, user_frames

            if not user_frames(error):
                raise
            print_error(describe_error(error))
            raise typer.Exit(1) from None


def print_error(text: str) -> None:
    """Print an error's sentences, each marked as one, and the lines of the user's code that follow them."""
    sentences, frames, rest = text.partition('\n  File "')
    for line in sentences.splitlines():
        typer.secho(f"{prefix()}error: {line}", err=True, fg="red")
    for line in (frames + rest).strip("\n").splitlines():
        typer.secho(f"{prefix()}{line}", err=True)


def _refuse(sentences: str, error: Exception | None = None) -> NoReturn:
    """Print an error and exit with 2; without a sentence, let the parser show its own."""
    if error is not None and not sentences:
        raise error
    print_error(sentences)
    raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples: [cyan]tenfold train --model lenet5 --data mnist --epochs 3[/], [cyan]tenfold runs[/], "
    "[cyan]tenfold report last -o report.html[/]. Each command's --help has more.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tenfold import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    _version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Train PyTorch models faster by dividing their data among workers, and predict the speedup."""


COMMANDS = {
    "Train": "train:train compare:compare compare:sweep train:crossval train:resume launch:launch",
    "Predict the time": "predict_time:simulate predict_time:scaling predict_time:plan predict_time:twin "
    "predict_time:whatif predict_time:calibrate",
    "Look at runs": "runs:runs runs:show runs:report runs:board runs:tag runs:untag runs:note runs:remove",
    "Use the model": "model:predict model:evaluate model:export",
    "Set up": "train:demo setup:init setup:schema setup:data_app setup:doctor",
}
"""The module of this package that defines each command, and its name, by the heading under which the help lists it."""


def _add(command: Any, name: str | None, heading: str) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, rich_help_panel=heading)
    else:
        app.command(name=name, rich_help_panel=heading)(command)


def _loaded(plugin: EntryPoint) -> Any:
    """Return a command of an installed package, or one that says why it cannot be loaded: the others still work."""
    try:
        return load(plugin, "command")
    except TenfoldError as error:
        problem = error

    def refuse() -> None:
        raise problem

    refuse.__doc__ = f"Cannot be loaded; see the package {package_of(plugin)}."
    return refuse


for heading, commands in COMMANDS.items():
    for module, _, name in (path.partition(":") for path in commands.split()):
        _add(getattr(import_module(f"{__name__}.{module}"), name), "data" if name == "data_app" else None, heading)
for plugin in installed("tenfold.commands"):
    _add(_loaded(plugin), plugin.name, "Added by installed packages")


def main() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started this program
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the program ends
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        os.getcwd()  # noqa: PTH109 - only whether it is there
    except FileNotFoundError:
        print_error("the current folder has been removed; change to another one")
        sys.exit(2)
    try:
        _guard_rank()
        app()
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            print_error(f"the disk is full: {error}")
            sys.exit(2)
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            more = 2 * (cores.open_file_limit() or 512)
            print_error(f"too many open files; raise the limit with `ulimit -n {more}`")
            sys.exit(2)
        if not signals_received:
            raise
        # A library that was being imported turned the interrupt into an error.
        print_interrupted("nothing was recorded")
        sys.exit(interruption_code())
    finally:
        if signals_received:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C should not interrupt the cleanup


def _interrupt(number: int, _: Any) -> None:
    """End the command after Ctrl-C or SIGTERM, such that what it records is complete."""
    signals_received.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one should not interrupt the cleanup
    raise Terminated


def _guard_rank() -> None:
    """Under a launcher, start a guard, before torch is imported, that tells other ranks if this one is stopped."""
    if sys.argv[1:2] not in (["train"], ["resume"]):
        return
    from tenfold.launchers import detect_world

    with suppress(TenfoldError):  # about invalid launcher variables; the command reports it
        world = detect_world()
        if world is not None and world.local_size < world.size:  # those of one host watch each other
            from tenfold.machine.rank_guard import start_guard

            start_guard(world, "tenfold.transport.meeting:report_stop")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.secho(f"{prefix()}warning: {message}", err=True, fg="yellow")
