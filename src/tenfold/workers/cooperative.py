"""Several workers in one process: each runs until it has to wait for another, then the next one runs.

Workers are not threads: torch keeps a pool of threads for each thread that computes, and all threads would share the
random generators. Each worker is a greenlet, which gives way only where it waits, and keeps its own random state.
"""

from collections.abc import Callable, Sequence
from time import sleep
from typing import Any

from greenlet import getcurrent, greenlet
from numpy.typing import NDArray

from tenfold.training.randomness import RngState
from tenfold.workers.task import Decision, Message

SHORTEST_NAP, LONGEST_NAP = 2e-5, 1e-3


class Scheduler:
    """Runs the workers of a process in turns; `exchange_times` decides the order of those that ask for a turn."""

    def __init__(self, exchange_times: NDArray[Any] | None = None, waiting: Callable[[], None] = lambda: None) -> None:
        """Grant turns in the order of `exchange_times` [steps, workers], the times at which each worker's steps end.

        `waiting` is called repeatedly while all workers wait for those of other processes.
        """
        self._waiting = waiting
        self._times = exchange_times
        self._ready: dict[greenlet, Callable[[], bool]] = {}
        self._asking: dict[greenlet, tuple[int, int]] = {}

    def run(self, workers: Sequence[Callable[[], None]]) -> None:
        """Run all workers until they finish; the first error ends them all."""
        running = [greenlet(worker) for worker in workers]
        self._ready = dict.fromkeys(running, _always)
        nap = SHORTEST_NAP
        while running:
            able = [worker for worker in running if self._ready[worker]()]
            for worker in able:
                if self._ready[worker]():
                    worker.switch()
            running = [worker for worker in running if not worker.dead]
            if able:
                nap = SHORTEST_NAP
            elif self._asking:
                self._grant_turn()
            else:  # all wait for workers of other processes
                self._waiting()
                sleep(nap)
                nap = min(2 * nap, LONGEST_NAP)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Let other workers run until `ready()` is true for this one."""
        if ready():
            return
        worker, rng_state = getcurrent(), RngState.read()
        self._ready[worker] = ready
        worker.parent.switch()
        rng_state.restore()

    def wait_for_turn(self, rank: int, step: int) -> None:
        """Let other workers run until it is this worker's turn to exchange weights after a step."""
        worker = getcurrent()
        self._asking[worker] = rank, step
        self.wait_until(lambda: worker not in self._asking)

    def _grant_turn(self) -> None:
        """Give the turn to the worker whose step ends first; at equal times, to the one that asked first."""
        assert self._times is not None
        times = self._times
        first = min(self._asking, key=lambda worker: times[self._asking[worker][1] - 1, self._asking[worker][0]])
        del self._asking[first]


def _always() -> bool:
    return True


class TurnLock:
    """Used in place of all locks of one worker: it is acquired when the worker's turn comes, once a step."""

    def __init__(self, scheduler: Scheduler, rank: int) -> None:
        self._scheduler = scheduler
        self._rank = rank
        self._granted = 0
        self.step: Callable[[], int] = lambda: 0
        """Returns the step that the worker is in."""

    def __enter__(self) -> None:
        step = self.step()
        if step > self._granted:
            self._granted = step
            self._scheduler.wait_for_turn(self._rank, step)

    def __exit__(self, *_: object) -> None: ...


class MessageBatch:
    """Collects one message from each worker of a process, sends them together, and gives all the same answer."""

    def __init__(self, size: int, send: Callable[[tuple[Message, ...]], Decision], scheduler: Scheduler) -> None:
        self._size = size
        self._send = send
        self._scheduler = scheduler
        self._messages: dict[int, Message] = {}
        self._answers = 0
        self._decision = Decision()

    def report(self, index: int, message: Message) -> Decision:
        """Add the message of the worker with this index, and return the answer when all have added theirs."""
        self._messages[index] = message
        answers = self._answers
        if len(self._messages) == self._size:
            messages = tuple(self._messages[index] for index in range(self._size))
            self._messages = {}
            self._decision = self._send(messages)
            self._answers += 1
        else:
            self._scheduler.wait_until(lambda: self._answers > answers)
        return self._decision
