"""Waiting in another thread for libraries whose waiting cannot be interrupted."""

import atexit
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from tenfold.transport.base import CHECK_SECONDS

STOP_SECONDS = 2.0


class WaitingThread:
    """A thread that makes blocking calls, so that the caller can check for failures and receive Ctrl-C meanwhile."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.is_idle = True
        """Whether no call is being made."""
        _all.add(self)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="tenfold-waiting")
        self._thread.start()

    def wait(self, call: Callable[[], Any], check: Callable[[float], None], timeout: float) -> None:
        """Make the call in the thread; meanwhile call `check` repeatedly, which ends the waiting by raising."""
        self.is_idle = False
        self._calls.put(call)
        until = monotonic() + timeout
        while True:
            try:
                error = self._results.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                check(CHECK_SECONDS)
                if monotonic() > until:
                    raise TimeoutError from None
                continue
            if error is not None:
                raise error
            return

    def stop(self) -> None:
        """End the thread, unless it is blocked."""
        self._calls.put(None)
        if self.is_idle:
            self._thread.join(STOP_SECONDS)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            result: BaseException | None = None
            try:
                call()
            except BaseException as error:
                result = error
            call = None  # release what it holds before the caller continues
            self.is_idle = True
            self._results.put(result)


_all: "weakref.WeakSet[WaitingThread]" = weakref.WeakSet()


def is_any_stuck() -> bool:
    """Return whether a thread still waits in a library, which would crash the interpreter when that ends."""
    return any(not waiting.is_idle for waiting in list(_all))


def _exit_if_stuck() -> None:
    """End the process at once where a thread that waits for a lost rank would crash the interpreter.

    Registered when this module is loaded, so that functions that are registered later still run.
    """
    if is_any_stuck():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(2)


atexit.register(_exit_if_stuck)
