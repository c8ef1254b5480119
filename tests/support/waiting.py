"""Waiting for what another process does."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], *, seconds: float = 60, pause: float = 0.02) -> None:
    """Return when the condition holds; fail if it does not within this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened within {seconds:g} s"
        time.sleep(pause)
