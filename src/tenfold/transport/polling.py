"""Waiting by polling, without taking the core from the processes that are waited for."""

import os
from collections.abc import Callable
from time import perf_counter, sleep

SPINS = 300
"""Polls before the first pause: most waits are over by then."""
YIELD_SECONDS = 0.002
LONGEST_NAP = 0.001
CHECK_SECONDS = 0.2


def wait(ready: Callable[[], bool], check: Callable[[float], None], first_check: float = CHECK_SECONDS) -> None:
    """Poll until `ready`: at first yield the core between polls, then sleep for 2% of the time waited so far.

    Every `CHECK_SECONDS`, the first time after at most `first_check` seconds, `check` is called with the seconds
    waited; it raises when waiting is pointless.
    """
    started = perf_counter()
    next_check = started + min(first_check, CHECK_SECONDS)
    while not ready():
        now = perf_counter()
        waited = now - started
        if waited < YIELD_SECONDS:
            os.sched_yield()
        else:
            sleep(min(waited / 50, LONGEST_NAP))
        if now >= next_check:
            check(waited)
            next_check = now + CHECK_SECONDS
