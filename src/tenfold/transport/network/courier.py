"""Waiting in another thread, where a library can only wait blindly."""

import queue
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from tenfold.transport.memory.waiting import LOOK_AROUND_SECONDS

STOP_SECONDS = 2.0


class Courier:
    """A thread that waits for what others would wait for, so that these can look around meanwhile.

    It also leaves the caller's thread free to hear signals such as Ctrl-C.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.is_idle = True
        self._thread = threading.Thread(target=self._serve, daemon=True, name="tenfold-courier")
        self._thread.start()

    def wait(self, errand: Callable[[], Any], look: Callable[[float], None], timeout: float) -> None:
        """Run the errand to its end, calling `look` now and then, which ends the waiting by raising."""
        self.is_idle = False
        self._asked.put(errand)
        until = monotonic() + timeout
        while True:
            try:
                error = self._answers.get(timeout=LOOK_AROUND_SECONDS)
            except queue.Empty:
                look(LOOK_AROUND_SECONDS)
                if monotonic() > until:
                    raise TimeoutError from None
                continue
            self.is_idle = True
            if error is not None:
                raise error
            return

    def stop(self) -> None:
        """End the thread, unless it waits for the dead."""
        self._asked.put(None)
        if self.is_idle:
            self._thread.join(STOP_SECONDS)

    def _serve(self) -> None:
        while (errand := self._asked.get()) is not None:
            answer: BaseException | None = None
            try:
                errand()
            except BaseException as error:
                answer = error
            errand = None  # what it holds is let go of here, before anybody goes on
            self._answers.put(answer)
