"""Several workers in one process: one runs until it has to wait for another, then the next goes on.

Workers are not threads. Torch keeps a pool of threads for each thread that computes, and sources of chance are shared
by all; so each worker is a greenlet, which gives way only where it waits, and takes its own chance with it.
"""

from collections.abc import Callable, Sequence
from time import sleep
from typing import Any

from greenlet import getcurrent, greenlet
from numpy.typing import NDArray

from tenfold.training.randomness import RngState
from tenfold.workers.messages import Decision, Message

Ready = Callable[[], bool]
SHORTEST_NAP, LONGEST_NAP = 2e-5, 1e-3


class Hub:
    """Lets guests run in turns; who may go first among those that ask is decided by `times`."""

    def __init__(self, times: NDArray[Any] | None = None) -> None:
        """Keep turns in the order of `times` [steps, workers], in which the steps of workers without rounds end."""
        self._times = times
        self._ready: dict[greenlet, Ready] = {}
        self._asking: dict[greenlet, tuple[int, int]] = {}

    def run(self, lives: Sequence[Callable[[], None]]) -> None:
        """Live all lives to their ends; the first error ends them all."""
        guests = [greenlet(life) for life in lives]
        self._ready = dict.fromkeys(guests, _now)
        nap = SHORTEST_NAP
        while guests:
            able = [guest for guest in guests if self._ready[guest]()]
            for guest in able:
                if self._ready[guest]():
                    guest.switch()
            guests = [guest for guest in guests if not guest.dead]
            if able:
                nap = SHORTEST_NAP
            elif self._asking:
                self._grant()
            else:  # all wait for workers of other processes
                sleep(nap)
                nap = min(2 * nap, LONGEST_NAP)

    def until(self, ready: Ready) -> None:
        """Let others run until this guest is ready."""
        if ready():
            return
        guest, chance = getcurrent(), RngState.now()
        self._ready[guest] = ready
        guest.parent.switch()
        chance.restore()

    def turn(self, worker: int, step: int) -> None:
        """Let others run until it is this worker's turn to share what its step has brought."""
        guest = getcurrent()
        self._asking[guest] = worker, step
        self.until(lambda: guest not in self._asking)

    def _grant(self) -> None:
        """Give the turn to whose step ends first; of two at the same moment, to the one who began to ask first."""
        assert self._times is not None
        times = self._times
        first = min(self._asking, key=lambda guest: times[self._asking[guest][1] - 1, self._asking[guest][0]])
        del self._asking[first]


def _now() -> bool:
    return True


class Turn:
    """Stands for the locks of one worker: held when its turn comes, which happens once a step."""

    def __init__(self, hub: Hub, worker: int) -> None:
        self._hub = hub
        self._worker = worker
        self._granted = 0
        self.step: Callable[[], int] = lambda: 0
        """Says which step the worker is in."""

    def __enter__(self) -> None:
        step = self.step()
        if step > self._granted:
            self._granted = step
            self._hub.turn(self._worker, step)

    def __exit__(self, *_: object) -> None: ...


class MessageBatch:
    """Where the workers of a process hand in their messages: when all have, one answer comes for all."""

    def __init__(self, size: int, send: Callable[[tuple[Message, ...]], Decision], hub: Hub) -> None:
        self._size = size
        self._send = send
        self._hub = hub
        self._messages: dict[int, Message] = {}
        self._answers = 0
        self._verdict = Decision()

    def tell(self, place: int, message: Message) -> Decision:
        """Hand in the message of the worker at this place, and return the answer."""
        self._messages[place] = message
        answers = self._answers
        if len(self._messages) == self._size:
            messages = tuple(self._messages[place] for place in range(self._size))
            self._messages = {}
            self._verdict = self._send(messages)
            self._answers += 1
        else:
            self._hub.until(lambda: self._answers > answers)
        return self._verdict
