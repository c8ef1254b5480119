"""`python` for the command of a launcher: the rank is forked from a server that has torch, and this process waits.

mpirun -n 2 python forked_rank.py ADDRESS program.py ARGUMENTS
"""

import atexit
import ctypes
import os
import runpy
import signal
import sys
import threading
import types
from multiprocessing import Pipe, forkserver, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

NAMESPACES = ("net", "uts") if sys.platform == "linux" else ()
"""In which hosts of tests differ."""


def start(address: str, *command: str) -> int:
    """Run a program, `-m` and a module, or `-c` and code in a forked process; return its exit code."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address, server._forkserver_alive_fd = address, os.pipe()[1]
    server.ensure_running = lambda: None
    spaces = {name: str(Path("/proc/self/ns", name).readlink()) for name in NAMESPACES}
    files = [os.dup(1), os.dup(2), *(os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES)]
    sent = [Connection(file, writable=False) for file in files]  # as connections can be sent, and files cannot
    lifeline, _held = Pipe(duplex=False)
    sys.modules["__main__"] = types.ModuleType("__main__")  # which the other process would import
    arguments = (dict(os.environ), spaces, sent, lifeline, command)
    process = get_context("forkserver").Process(target=_run, args=arguments)
    process.start()
    process.join()
    return int(process.exitcode or 0)


def _run(
    environment: dict[str, str],
    spaces: dict[str, str],
    sent: list[Connection],
    lifeline: Connection,
    command: tuple[str, ...],
) -> None:
    """In the forked process: become what the launcher started, and end as a program does."""
    for stream, file in zip((1, 2), sent[:2], strict=True):
        os.dup2(file.fileno(), stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    for (name, space), file in zip(spaces.items(), sent[2:], strict=True):
        if str(Path("/proc/self/ns", name).readlink()) != space and ctypes.CDLL(None).setns(file.fileno(), 0):
            raise OSError(f"cannot enter the namespace {space}")
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the server ignores
    atexit._clear()  # what the server would do at its end
    code = 0
    try:
        _run_command(command)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi and code == 0 and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()  # as at the end of an interpreter
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_command(command: tuple[str, ...]) -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    if command[0] == "-m":
        sys.argv = [*command[1:]]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(command[1], {"__name__": "__main__"})
        return
    sys.argv = [*command]
    sys.path.insert(0, str(Path(command[0]).parent))
    runpy.run_path(command[0], run_name="__main__")


def _end_with(lifeline: Connection) -> None:
    """End when the process that the launcher started is gone."""
    lifeline.poll(None)
    os._exit(1)


if __name__ == "__main__":
    import forked_rank

    sys.exit(forked_rank.start(*sys.argv[1:]))
