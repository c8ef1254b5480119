"""`--board`: a board that opens on the run that a command trains."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from tenfold.cli.output import launched_rank
from tenfold.common.imports import tenfold_command
from tenfold.errors import MachineError

if TYPE_CHECKING:
    from tenfold.runs import Emit, Event

ShowBoard = Annotated[bool, typer.Option("--board", help="Open a local page that shows the run as it trains.")]


class BoardWindow:
    """Serves a board while its `with` block lasts, and opens it on the run that is recorded.

    The board is a separate process, so that it takes no time from training. On a terminal it stays until Ctrl-C.
    """

    def __init__(self, runs: Path | None, wanted: bool) -> None:
        self._runs = runs
        self._wanted = wanted and not launched_rank()
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    def __enter__(self) -> Self:
        if self._wanted:
            from tenfold.runs.store import absolute

            command = tenfold_command("board", "--runs", str(absolute(self._runs)), "--no-open")
            command += ["--until-stdin-ends"]  # which it does when this process does, however that happens
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            line = process.stdout.readline() if process.stdout is not None else ""
            self._address, self._process = line.partition("the board is at ")[2].strip(), process
            if not self._address:
                process.wait()
                raise MachineError("the board did not start, so nothing was trained")
        return self

    def watch(self, listen: "Emit") -> "Emit":
        """Return a listener that opens the page when the run has a number, and passes all events on."""
        from tenfold.runs import Recorded

        def hear(event: "Event") -> None:
            if isinstance(event, Recorded) and self._address:
                self._open(event.run)
            listen(event)

        return hear

    def _open(self, run: int) -> None:
        import webbrowser

        address = self._address.replace("/?", f"/run/{run}?")
        typer.echo(f"the board shows run {run} at {address}", err=True)
        webbrowser.open(address)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        try:
            if kind is None and sys.stdout.isatty():
                typer.echo("the board stays open until Ctrl-C", err=True)
                process.wait()
        except KeyboardInterrupt:
            pass
        finally:
            process.terminate()
            process.wait(timeout=10)
