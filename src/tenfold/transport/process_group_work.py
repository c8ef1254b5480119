"""The operations of a process group: begun in order, carried on by whoever has the time, and waited for.

An operation is a generator (see `shared_collectives.py`) that says what it waits for. The thread that begins one
carries it on for a moment, and a blocking one to its end. Where others take longer, a thread of the group continues, so
that what was begun asynchronously makes progress while the program computes, and futures that C++ waits for are
completed.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Work
from torch.futures import Future

from tenfold.errors import TrainingError, WorkerLost
from tenfold.transport.base import CHECK_SECONDS, LONGEST_NAP, YIELD_SECONDS, wait
from tenfold.transport.shared_collectives import Steps

LINGER_SECONDS = 0.0005
"""Seconds for which the thread that begins an asynchronous operation carries it on itself: most have ended by then, and
another thread needs longer to begin."""
POLLS = 50
"""Looks at an operation before the core is left to others between two of them."""
NAP_SECONDS = 50e-6
"""The least seconds between two looks of the group's thread while the program computes."""


class CollectiveError(TrainingError, dist.DistBackendError):
    """An operation of a process group failed: ranks called different ones, or one came too late."""


class RankLost(WorkerLost, CollectiveError):  # noqa: N818 - as `WorkerLost`
    """A rank of a process group died, was stopped or left; `rank` is its number among all ranks."""


class FailureWatch(Protocol):
    """Knows what became of the other ranks."""

    def check(self, work: "GroupWork", is_late: bool, can_go_on: Callable[[], bool]) -> None:
        """Raise an error if the operation cannot end, or if it is late; `can_go_on` looks once more whether it can."""

    def explain(self, error: BaseException) -> BaseException:
        """Return the reason for the error of a network, if it is known."""


class GroupWork(Work):
    """One operation: the handle that torch's functions return, and how far it has come."""

    def __init__(
        self,
        progress: "Progress",
        name: str,
        steps: Steps,
        result: list[Tensor],
        timeout: float,
        transfer: Any = None,
    ) -> None:
        """`transfer` is the message of an operation between two ranks; such operations need no order."""
        super().__init__()
        self.name = name
        self.timeout = timeout
        self.until = time.perf_counter() + timeout
        self.done = False
        self.error: BaseException | None = None
        self.ready: Callable[[], bool] | None = None
        """What it waits for; None at the start and at the end."""
        self._progress = progress
        self._steps = steps
        self._result = result
        self.transfer = transfer
        self.clock = _own_clock()
        """The processor time of the thread that begins it."""
        self._future: Any = None

    def advance(self) -> bool:
        """Continue as far as is possible without waiting, and return whether it has ended."""
        if self.done:
            return True
        try:
            while self.ready is None or self.ready():
                self.ready = next(self._steps)
        except StopIteration:
            self.finish()
        except BaseException as error:
            self.finish(self._progress.explain(error))
            if not isinstance(error, Exception):
                raise
        return self.done

    def finish(self, error: BaseException | None = None) -> None:
        """End it, successfully or with an error."""
        if self.done:
            return
        if isinstance(error, TrainingError) and not isinstance(error, CollectiveError):
            error = CollectiveError(f"{self.name}: {error}")
        self.error, self.ready = error, None
        self.done = True
        if error is not None:
            self._steps.close()
        if self._future is not None:
            self._complete(self._future)

    def missing(self) -> list[int]:
        """Return the ranks that it waits for, where that is known."""
        found: list[int] = getattr(self.ready, "missing", list)()
        return found

    def is_completed(self) -> bool:
        """Return whether it has ended."""
        return self._progress.poll(self)

    def is_success(self) -> bool:
        """Return whether it has ended without an error."""
        return self.is_completed() and self.error is None

    def exception(self) -> BaseException | None:
        """Return the error that ended it, if any."""
        return self.error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it has ended, and raise its error."""
        seconds = timeout.total_seconds()
        if seconds > 0:
            self.until, self.timeout = min(self.until, time.perf_counter() + seconds), min(self.timeout, seconds)
        self._progress.wait(self)
        return True

    def synchronize(self) -> None:
        """Wait until it has ended."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait until it has ended: there are no streams on a CPU."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Return the tensors that it fills."""
        return self._result

    def source_rank(self) -> int:
        """Return the rank that a message came from."""
        return int(self.transfer.source)

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future for the tensors that it fills."""
        with self._progress.lock:
            if self._future is None:
                self._future = Future()
                if self.done:
                    self._complete(self._future)
            return self._future

    def _complete(self, future: Any) -> None:
        if self.error is None:
            future.set_result(self._result)
        else:
            future.set_exception(self.error)


class GlooMessage(Work):
    """A message to or from another host: gloo's own operation, which names who was lost if it fails."""

    def __init__(self, work: Any, watch: FailureWatch) -> None:
        super().__init__()
        self._work, self._watch = work, watch

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it has ended, and raise its error."""
        try:
            return bool(self._work.wait(timeout))
        except RuntimeError as error:
            raise self._watch.explain(error) from None

    def is_completed(self) -> bool:
        """Return whether it has ended."""
        return bool(self._work.is_completed())

    def source_rank(self) -> int:
        """Return the rank that a message came from."""
        return int(self._work._source_rank())

    _source_rank = source_rank


class Progress:
    """Carries the operations of one group on: collective ones one after another, messages at the same time."""

    def __init__(self, watch: FailureWatch, advance_messages: Callable[[], None]) -> None:
        """`advance_messages` sends and receives what is possible."""
        self.lock = threading.RLock()
        self._watch = watch
        self._advance_messages = advance_messages
        self._collectives: deque[GroupWork] = deque()
        self._messages: list[GroupWork] = []
        self._failure: BaseException | None = None
        self._waiting = 0
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, work: GroupWork, *, blocking: bool = False) -> GroupWork:
        """Begin an operation, which ends later unless it is blocking."""
        with self.lock:
            if self._failure is not None:
                raise self._failure
            (self._collectives if work.transfer is None else self._messages).append(work)
            self._advance()
        if not work.done:
            if blocking:
                self.wait(work)
            elif work.transfer is None:
                self._linger(work)
            else:
                self._wake_thread()
        if work.error is not None and blocking:
            raise work.error
        return work

    def poll(self, work: GroupWork) -> bool:
        """Carry everything on, and return whether an operation has ended."""
        if not work.done and self.lock.acquire(blocking=False):
            try:
                self._advance()
            finally:
                self.lock.release()
        return work.done

    def wait(self, work: GroupWork) -> None:
        """Carry everything on until an operation has ended, and raise its error."""
        if not work.done:
            self._waiting += 1
            try:
                for _ in range(POLLS):
                    if self.poll(work):
                        break
                else:
                    first = max(0.0, work.until - time.perf_counter())
                    wait(lambda: self.poll(work), lambda _: self._check(work), first)
            finally:
                self._waiting -= 1
                self._wake_thread()
        if work.error is not None:
            raise work.error

    def fail(self, error: BaseException) -> None:
        """End all operations, now and later, with an error."""
        with self.lock:
            self._failure = self._failure or error
            for work in (*self._collectives, *self._messages):
                work.finish(error)
            self._collectives.clear()
            self._messages.clear()

    def explain(self, error: BaseException) -> BaseException:
        """Return the reason for an error; after the error of a network, or an interrupt, the group cannot go on."""
        if isinstance(error, TrainingError):
            return error
        reason = self._watch.explain(error)
        self._failure = self._failure or reason
        return reason

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CHECK_SECONDS)

    def _linger(self, work: GroupWork) -> None:
        """Carry an operation on for a moment, then leave it to the thread."""
        until = time.perf_counter() + LINGER_SECONDS
        polls = 0
        while not self.poll(work):
            polls += 1
            if polls > POLLS:
                os.sched_yield()
            if time.perf_counter() > until:
                self._wake_thread()
                return

    def _wake_thread(self) -> None:
        if self._collectives or self._messages:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True, name="tenfold-process-group")
                self._thread.start()
            self._wake.set()

    def _serve(self) -> None:
        """Carry operations on while nobody waits for them, at full speed where the program does nothing either.

        DDP waits for its futures in C++: then the thread that has begun the operation uses no processor time.
        """
        checked = seen = time.perf_counter()
        ahead, used = None, 0.0
        while not self._closed:
            if self._waiting or not (self._collectives or self._messages):
                self._wake.wait()
                self._wake.clear()
                checked = time.perf_counter()
                continue
            with self.lock:
                self._advance()
                now = time.perf_counter()
                pending = [*list(self._collectives)[:1], *self._messages]
            for work in pending:
                if now > checked + CHECK_SECONDS or now > work.until:
                    self._check(work)
            if now > checked + CHECK_SECONDS:
                checked = now
            if not pending:
                continue
            if pending[0] is not ahead:
                ahead, seen = pending[0], now
            used, before = _processor_time(ahead.clock), used
            if used == before and now - seen < YIELD_SECONDS:
                os.sched_yield()
            else:
                time.sleep(min(LONGEST_NAP, max(NAP_SECONDS, (now - seen) / 50)))

    def _advance(self) -> None:
        collectives = self._collectives
        while collectives and collectives[0].advance():
            collectives.popleft()
        if self._messages:
            self._advance_messages()
            self._messages = [work for work in self._messages if not work.advance()]

    def _check(self, work: GroupWork) -> None:
        """End an operation with an error if ranks that it waits for are lost, or if it has taken too long."""
        with self.lock:
            if work.done:
                return
            ahead = work if work in self._messages else next(iter(self._collectives), work)

            def can_go_on() -> bool:
                self._advance()
                return ahead.done or ahead.ready is None or ahead.ready()

            try:
                self._watch.check(ahead, time.perf_counter() >= work.until, can_go_on)
            except Exception as error:
                if can_go_on():
                    return
                if work.transfer is None or isinstance(error, RankLost):
                    self.fail(error)
                else:
                    self._messages.remove(work)
                    work.finish(error)


def _own_clock() -> int:
    """Return the clock that counts the processor time of this thread; -1 where the system has none."""
    return time.pthread_getcpuclockid(threading.get_ident()) if hasattr(time, "pthread_getcpuclockid") else -1


def _processor_time(clock: int) -> float:
    """Return the processor time of a thread; 0 where it is not known, or the thread has ended."""
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0
