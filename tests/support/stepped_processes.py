"""Processes that take one system call at a time, in an order that the test chooses, and that can be killed at any.

Linux only: each is forked from this process, and traced by `ptrace`.
"""

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache

TRACEME, CONTINUE_TO_SYSCALL, SET_OPTIONS = 0, 24, 0x4200
END_WITH_TRACER, MARK_SYSCALLS = 0x100000, 1
SYSCALL = signal.SIGTRAP | 0x80
WAIT_SECONDS = 0.0005
"""How long a process may take to its next system call before others have their turn."""


def can_trace() -> bool:
    """Return whether processes can be traced here."""
    if sys.platform != "linux":
        return False
    try:
        return run([lambda: None], seed=0, kills=[]) == {}
    except OSError:
        return False


def run(
    works: Sequence[Callable[[], None]], *, seed: int, kills: Sequence[tuple[int, int]], within: float = 30.0
) -> dict[int, int]:
    """Do each piece of work in a process, their system calls in a random order; return who was killed, and at which.

    `kills` has pairs of a process and the number of its system call before which it is killed. Raises RuntimeError if a
    process fails by itself, and TimeoutError if they do not end.
    """
    chance, processes = random.Random(seed), [Stepped(work) for work in works]
    last = dict(kills)
    killed: dict[int, int] = {}
    until = time.monotonic() + within
    try:
        while living := [number for number, process in enumerate(processes) if process.is_alive]:
            ready = [number for number in living if processes[number].is_stopped()]
            if not ready:
                time.sleep(WAIT_SECONDS)
            else:
                number = chance.choice(ready)
                process = processes[number]
                if process.calls >= last.get(number, sys.maxsize):
                    process.kill()
                    killed[number] = process.calls
                else:
                    process.step()
            if time.monotonic() > until:
                raise TimeoutError(f"processes {living} have not ended after {within:g} s")
    finally:
        for process in processes:
            process.kill()
    failed = [number for number, process in enumerate(processes) if number not in killed and process.status != 0]
    if failed:
        raise RuntimeError(f"processes {failed} failed by themselves")
    return killed


class Stepped:
    """A fork of this process that does some work, and stops before and after each system call."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.calls = 0
        """How many system calls it has begun."""
        self.status: int | None = None
        self._entering = False
        self._stopped = False
        self.pid = os.fork()
        if self.pid == 0:
            _work(work)
        os.waitpid(self.pid, 0)
        _ptrace(SET_OPTIONS, self.pid, END_WITH_TRACER | MARK_SYSCALLS)
        self.step()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.status is None

    def step(self, number: int = 0) -> None:
        """Let it run to the beginning or the end of a system call, with a signal if one was sent to it.

        Waits for that for a moment only: the process may sleep, or wait for the locks of others.
        """
        self._stopped = False
        _ptrace(CONTINUE_TO_SYSCALL, self.pid, number)
        until = time.monotonic() + WAIT_SECONDS
        while self.is_alive and not self.is_stopped() and time.monotonic() < until:
            pass

    def is_stopped(self) -> bool:
        """Return whether it stands at a system call."""
        if self.is_alive and not self._stopped:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                pass
            elif not os.WIFSTOPPED(status):
                self.status = status
            elif os.WSTOPSIG(status) == SYSCALL:
                self._stopped, self._entering = True, not self._entering
                self.calls += self._entering
            else:
                self.step(os.WSTOPSIG(status))
        return self._stopped

    def kill(self) -> None:
        """Kill it as `kill -9` does, unless it has ended."""
        if self.is_alive:
            os.kill(self.pid, signal.SIGKILL)
            while not (os.WIFSIGNALED(status := os.waitpid(self.pid, 0)[1]) or os.WIFEXITED(status)):
                pass
            self.status, self._stopped = status, False


def _work(work: Callable[[], None]) -> None:
    """In the fork."""
    code = 1
    try:
        _ptrace(TRACEME, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _ptrace(request: int, pid: int, data: int) -> None:
    if _library().ptrace(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    library.ptrace.restype = ctypes.c_long
    return library
