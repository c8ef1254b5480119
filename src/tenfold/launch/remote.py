"""Starting commands on other machines over ssh, and ending them together."""

import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic

from tenfold.errors import MachineError
from tenfold.launch.hosts_file import Host

SSH = ("ssh", "-tt", "-o", "BatchMode=yes")
"""With a terminal (-tt) a remote program is hung up on when ssh ends; BatchMode never asks for a password."""
PATIENCE = 15.0
"""Seconds that a command has to end after it is asked to; torchrun gives its workers ten of them."""

Say = Callable[[str, str], None]


def run_everywhere(commands: Sequence[tuple[Host, Sequence[str]]], folder: Path, say: Say) -> int:
    """Run each host's command in the folder of the same name there; return 0, or the code of the first that failed.

    `say(host, line)` gets every line of output. When one fails, or this process is interrupted, all are ended.
    """
    lines: SimpleQueue[tuple[int, str | None]] = SimpleQueue()
    started: list[subprocess.Popen[str]] = []
    failed = 0
    try:
        for place, (host, command) in enumerate(commands):
            started.append(_start(host, command, folder))
            Thread(target=_listen, args=(started[-1], place, lines), daemon=True).start()
        running = len(started)
        while running:
            place, line = lines.get()
            if line is not None:
                say(commands[place][0].name, line)
                continue
            running -= 1
            code = started[place].wait()
            if code and not failed:
                failed = code if code > 0 else 128 - code
                rest = "; ending the others" if running else ""
                say(commands[place][0].name, f"ended with exit code {failed}{rest}")
                _ask_to_end(started)
    finally:
        _end(started)
    return failed


def is_here(host: Host) -> bool:
    """Return whether a host is this machine, judging by its name."""
    return host.name in ("localhost", "127.0.0.1", socket.gethostname())


def _start(host: Host, command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    line = f"cd {shlex.quote(str(folder))} && exec {shlex.join(command)}"
    whole = ["sh", "-c", line] if is_here(host) else [*SSH, host.name, line]
    try:
        return subprocess.Popen(
            whole,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C comes here first, and all are ended from here
        )
    except OSError as error:
        raise MachineError(f"{whole[0]} cannot be started: {error.strerror}; --run needs it on the path") from None


def _listen(process: subprocess.Popen[str], place: int, lines: "SimpleQueue[tuple[int, str | None]]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put((place, line.rstrip("\r\n")))
    lines.put((place, None))


def _ask_to_end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        _signal(process, signal.SIGTERM)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    _ask_to_end(processes)
    deadline = monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
