"""The server that worker processes are forked from: it imports torch once, for all of them."""

import atexit
import contextlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from tenfold.errors import MachineError
from tenfold.machine import cores
from tenfold.machine.cores import keep_threads_in_children, wait_policy_for_children

START_ATTEMPTS = 3
SERVER_FOLDER = "TENFOLD_SERVER_FOLDER"
SAFE_PATH, OWN_SAFE_PATH = "PYTHONSAFEPATH", "tenfold"
"""Python's variable that keeps files of the current folder, which may be somebody else's, from being imported."""
_STARTING = threading.RLock()
PRELOADED = "tenfold.workers.process"
"""The name of the module that the server imports; it is not imported here, so the server can start before torch."""


_others_servers: set[int] = set()
"""This process, by its number, if the server that it knows belongs to the process that it was forked from."""


def context() -> BaseContext:
    """Return the context that starts processes: forked from a server that has imported torch, or spawned."""
    has_server = "forkserver" in multiprocessing.get_all_start_methods() and os.getpid() not in _others_servers
    return multiprocessing.get_context("forkserver" if has_server else "spawn")


def start_server() -> None:
    """Start the fork server of the workers, if it is not running; it imports their modules in the background.

    A pool starts it in any case; an early call lets both processes import torch at the same time.
    """
    if multiprocessing.current_process().daemon:  # see check_may_start
        return
    if context().get_start_method() == "forkserver":
        multiprocessing.set_forkserver_preload([PRELOADED])
        nested = multiprocessing.parent_process() is not None  # its folder is its parent's
        with (
            without_main(),
            # The server searches modules where this process does: in the current folder only if this process does.
            _environment("PYTHONPATH", os.pathsep.join(str(Path(place).resolve()) for place in sys.path)),
            _environment(SAFE_PATH, OWN_SAFE_PATH),
            # The folder of the server's socket; created here, because two threads would create two folders.
            _environment(SERVER_FOLDER, "" if nested else multiprocessing.util.get_temp_dir()),
            wait_policy_for_children(),
            _ignoring_interrupts(),
        ):
            try:
                multiprocessing.forkserver.ensure_running()
            except ChildProcessError:  # the program has called os.fork; `multiprocessing` has one server per program
                _others_servers.add(os.getpid())
            except OSError as error:
                if "path too long" not in str(error):
                    raise
                raise MachineError(
                    f"the name of the temporary folder, {tempfile.gettempdir()}, is too long for a socket; "
                    "set TMPDIR to a shorter one, such as /tmp"
                ) from None


def check_may_start() -> None:
    """Raise MachineError in a process that may not start others."""
    if multiprocessing.current_process().daemon:
        raise MachineError(
            "worker processes cannot be started from a process of multiprocessing.Pool; use workers=1 in it, and "
            'fold_mode="fold-by-fold" for folds, or start it with concurrent.futures.ProcessPoolExecutor'
        )


def start_server_for(workers: int, spare_files: int = cores.SPARE) -> None:
    """Start the server for this number of worker processes; raise MachineError if that many cannot be started."""
    check_may_start()
    cores.check_open_files(workers, spare_files)
    start_server()


def start_process(process: Any) -> None:
    """Start a process; if the fork server dies at this moment, restart the server and the process."""
    for _ in range(START_ATTEMPTS):
        try:
            start_server()  # it may have died since the first process was forked from it
            with without_main():
                process.start()
        except (EOFError, ConnectionError):
            time.sleep(0.1)
        else:
            return
    raise MachineError("worker processes cannot be started: the server that they are forked from was killed repeatedly")


def set_up_server() -> None:
    """In the server: allow workers several threads, and remove the socket's folder if the parent is killed."""
    folder, parent = os.environ.pop(SERVER_FOLDER, None), os.getppid()
    if os.environ.get(SAFE_PATH) == OWN_SAFE_PATH:
        del os.environ[SAFE_PATH]  # only for the server, not for programs that workers start
    if folder is None:
        return
    keep_threads_in_children()

    def remove() -> None:
        if os.getppid() != parent:
            shutil.rmtree(str(folder), ignore_errors=True)

    if folder:
        atexit.register(remove)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Hide the user's script while processes start, so that it is not run again in them.

    The objects they need from it are pickled by value, so a script needs no `if __name__ == "__main__"`. Other threads
    that start processes wait, because this module and the environment variables belong to the whole program.
    """
    with _STARTING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C while the server starts, because it would interrupt the server's imports."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
