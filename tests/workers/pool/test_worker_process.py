"""What a worker process sends besides its results."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tenfold.runs import Printed, Stopwatch
from tenfold.workers import process as worker_process
from tenfold.workers.pool import WorkerConnection


def test_what_is_printed_while_prints_are_collected_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may print at any moment; here it does so after every function that is called."""
    listeners: list[Callable[[str], None]] = []
    monkeypatch.setattr(worker_process, "tap_streams", listeners.append)
    connection = WorkerConnection(None)  # type: ignore[arg-type]
    worker_process.forward_prints(connection, Stopwatch(), 3)
    printed = 0

    def print_one() -> None:
        nonlocal printed
        printed += 1
        listeners[0]("x")

    def between(_: Any, event: str, __: Any) -> None:
        if event == "c_return":
            print_one()

    print_one()
    sys.setprofile(between)
    heard = connection.printed()
    sys.setprofile(None)
    heard += connection.printed()
    assert printed > 1
    assert "".join(event.text for event in heard if isinstance(event, Printed)) == "x" * printed
