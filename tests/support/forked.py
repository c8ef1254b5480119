"""Processes that tests fork from a server that has torch; their own workers come from it, too."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tenfold.workers import fork_server

_for_programs = forkserver.ForkServer()
"""A second server: forking from one that has imported more takes longer, so workers come from the first."""


def start_forked(target: Callable[..., None], *arguments: Any) -> Any:
    """Call a function in a new process."""
    fork_server.start_server()
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    process = fork_server.context().Process(target=_call, args=(address, target, arguments))  # type: ignore[attr-defined]
    process.start()
    return process


def start_program(target: Callable[..., None], *arguments: Any) -> Any:
    """Call a function that runs a user's program, in a process that has imported what such programs do."""
    with programs_server():
        return start_forked(target, *arguments)


def start_shared_server() -> str:
    """Start the server of programs, unless it runs, and return its address."""
    with programs_server():
        fork_server.start_server()
    return str(_for_programs._forkserver_address)  # type: ignore[attr-defined]


def use_shared_server(address: str) -> None:
    """Fork programs from a server that another process has started, which takes five seconds."""
    _for_programs._forkserver_address = address  # type: ignore[attr-defined]
    _for_programs._forkserver_alive_fd = os.pipe()[1]  # type: ignore[attr-defined]
    _for_programs.ensure_running = lambda: None  # type: ignore[method-assign]


@contextmanager
def programs_server() -> Iterator[None]:
    """Fork the processes that start in this block from the server that has imported what programs do."""
    import pytest  # not above: forked processes import this module, too

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "PRELOADED", "program_imports")
        patch.setattr(forkserver, "_forkserver", _for_programs)
        for name in ("ensure_running", "connect_to_new_process", "set_forkserver_preload"):
            patch.setattr(forkserver, name, getattr(_for_programs, name))
        yield


def forked_python() -> list[str]:
    """Return what takes the place of `python` in the command of a launcher, so that its ranks are forked, too."""
    return [sys.executable, str(Path(__file__).with_name("forked_rank.py")), start_shared_server()]


def run_command(folder: str, *arguments: str, ignoring: Sequence[int] = (), **environment: str) -> None:
    """In such a process: run the command line in a folder, with its output in the files `out` and `err` there.

    It ignores some signals, as `nohup` would let it, and sees these variables of the environment.
    """
    from tenfold.cli import main

    os.chdir(folder)
    os.environ.update(environment)
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(name), os.O_WRONLY | os.O_CREAT), stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1) for stream in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the server ignores
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests under `nohup` ignore
    for number in ignoring:
        signal.signal(number, signal.SIG_IGN)
    sys.argv = ["tenfold", *arguments]
    main()


def _call(address: str, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Call the function where starting workers does not start another server, which would import torch again."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address = address
    server.ensure_running = forkserver.ensure_running = lambda: None
    target(*arguments)
