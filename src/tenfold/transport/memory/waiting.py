"""How to wait for others without keeping them from coming."""

import os
from collections.abc import Callable
from time import perf_counter, sleep

SPINS = 300
"""How often to look before waiting in earnest: most waits are over by then."""
YIELD_SECONDS = 0.002
LONGEST_NAP = 0.001
LOOK_AROUND_SECONDS = 0.2


def wait(ready: Callable[[], bool], look_around: Callable[[float], None], soonest: float = LOOK_AROUND_SECONDS) -> None:
    """Wait until it is ready: give way to others on this core, then nap for 2% of the time waited so far.

    Now and then, for the first time after `soonest` seconds, `look_around` is called with the seconds waited; it raises
    where there is nothing to wait for.
    """
    started = perf_counter()
    next_look = started + min(soonest, LOOK_AROUND_SECONDS)
    while not ready():
        now = perf_counter()
        waited = now - started
        if waited < YIELD_SECONDS:
            os.sched_yield()
        else:
            sleep(min(waited / 50, LONGEST_NAP))
        if now >= next_look:
            look_around(waited)
            next_look = now + LOOK_AROUND_SECONDS
