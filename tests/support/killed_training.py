"""What runs in the processes that the tests of resuming kill. Imported by them, so it is a module of its own."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

SMALL: dict[str, Any] = {
    "model": "mlp",
    "data": "digits",
    "hidden": [16],
    "limit": 200,
    "epochs": 4,
    "batch_size": 50,
    "dropout": 0.2,
    "batchnorm": True,
    "optimizer": "adam",
    "threads": 1,
}
WHILE_TRAINING = ("tenfold.engines", "tenfold.training")
WHERE_FILES_ARE_WRITTEN = ("tenfold.common.files", "tenfold.runs", "tenfold.api.train")


def train(runs: str, **fields: Any) -> None:
    import tenfold

    tenfold.train(**SMALL | fields, runs=runs)


def train_until_line(runs: str, line: int, modules: tuple[str, ...] = WHILE_TRAINING) -> None:
    """Train, and die by SIGKILL at the given line of those that these modules execute."""
    import tenfold

    _die_at(line, modules)
    tenfold.train(**SMALL, runs=runs)


def resume_until_line(runs: str, line: int) -> None:
    """Resume the last run, and die likewise."""
    import tenfold

    _die_at(line)
    tenfold.resume(runs=runs)


def count_lines(runs: str, modules: tuple[str, ...]) -> int:
    """Return how many lines these modules execute in a whole run."""
    import tenfold

    count = 0

    def add() -> None:
        nonlocal count
        count += 1

    _at_each_line(add, modules)
    try:
        tenfold.train(**SMALL, runs=runs)
    finally:
        sys.settrace(None)
    return count


def _die_at(line: int, modules: tuple[str, ...] = WHILE_TRAINING) -> None:
    left = line

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    _at_each_line(count_down, modules)


def _at_each_line(call: Callable[[], None], modules: tuple[str, ...]) -> None:
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith(modules):
            return None
        if event == "line":
            call()
        return trace

    sys.settrace(trace)
