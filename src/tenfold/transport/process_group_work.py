"""The operations of a process group: started in order, continued by any free thread, and awaited.

An operation is a generator (see `shared_collectives.py`) that yields the condition it waits for. The thread that starts
an operation runs it for a moment, or to its end if it is blocking. If it takes longer, a thread of the group continues
it, so asynchronous operations make progress while the program computes, and futures that C++ waits for are completed.
"""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Work
from torch.futures import Future

from tenfold.errors import TrainingError, WorkerLost
from tenfold.transport.base import CHECK_SECONDS, LONGEST_NAP, YIELD_SECONDS, wait, yield_core
from tenfold.transport.shared_collectives import Steps

LINGER_SECONDS = 0.0005
"""Seconds for which the thread that begins an asynchronous operation carries it on itself: most have ended by then, and
another thread needs longer to begin."""
IDLE_LINGER_SECONDS = 0.05
"""The same for an operation during which the program does nothing else, as at the end of DDP's backward."""
IDLE_SHARE = 0.1
"""Share of an operation's time that a program computes at most while it does nothing else."""
TRUSTED = 50
"""How often an operation is believed to be like the last one that was watched."""
MOST_WATCHED = 1000
"""How many operations are remembered, with the program's actions during each."""
SPIN_SECONDS, CROWDED_SPIN_SECONDS = 0.02, YIELD_SECONDS
"""Seconds for which a waiting thread polls, if every rank has a core and if not."""
BUSY_SECONDS = 0.0005
"""Seconds after which a core that was left to others comes back where these need it: then it is time to sleep."""
POLLS = 50
"""Looks at an operation before the core is left to others between two of them."""
NAP_SECONDS = 50e-6
"""The least seconds between two looks of the group's thread while the program computes."""
NETWORK_NAP_SECONDS = 5e-3
"""The most seconds between two looks at an operation of gloo, whose end also ends the nap."""
END_SECONDS = 5.0
"""Seconds for which a group that is closed waits for its thread: it may be completing the futures of DDP."""


class CollectiveError(TrainingError, dist.DistBackendError):
    """An operation of a process group failed: ranks called different operations, or one was too late."""


class RankLost(WorkerLost, CollectiveError):  # noqa: N818 - as `WorkerLost`
    """A rank of a process group died, was stopped or left; `rank` is its number among all ranks."""


class FailureWatch(Protocol):
    """Detects failures of the other ranks."""

    def check(self, work: "GroupWork", is_late: bool, can_go_on: Callable[[], bool]) -> None:
        """Raise an error if the operation cannot end, or is late; `can_go_on` checks once more whether it can end."""

    def explain(self, error: BaseException) -> BaseException:
        """Return the cause of a network error, if it is known."""


class GroupWork(Work):
    """One operation: the handle that torch's functions return, and its progress."""

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
        """The condition that it waits for; None at the start and at the end."""
        self._progress = progress
        self._steps = steps
        self._result = result
        self.transfer = transfer
        is_dense = bool(result) and result[0].layout is torch.strided
        self.key = name, result[0].data_ptr() if is_dense else 0, len(result)
        """The key by which operations that a program repeats are told apart."""
        self.clock = -1
        """The processor time of the thread that began it, once that has left it to the group's thread."""
        self._future: Any = None
        self._outcome: Any = None

    def advance(self) -> bool:
        """Continue as far as possible without waiting, and return whether the operation has ended."""
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
        if self.done:
            return
        if isinstance(error, TrainingError) and not isinstance(error, CollectiveError):
            error = CollectiveError(f"{self.name}: {error}")
        self.error, self.ready = error, None
        self.done = True
        if error is not None:
            self._steps.close()
        if self._future is not None:
            self._future.set_result(None)

    def missing(self) -> list[int]:
        """Return the ranks that it waits for, if known."""
        missing: list[int] = getattr(self.ready, "missing", list)()
        return missing

    def is_completed(self) -> bool:
        return self._progress.poll(self)

    def is_success(self) -> bool:
        return self.is_completed() and self.error is None

    def exception(self) -> BaseException | None:
        return self.error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds()
        if seconds > 0:
            self.until, self.timeout = min(self.until, time.perf_counter() + seconds), min(self.timeout, seconds)
        self._progress.wait(self)
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return self._result

    def source_rank(self) -> int:
        return int(self.transfer.source)

    _source_rank = source_rank

    def get_future(self) -> Any:
        with self._progress.lock:
            if self.done and self.error is None and self._outcome is None:
                self._outcome = Future()
                self._outcome.set_result(self._result)
            elif self._outcome is None:
                future = self._future = self._make_future()
                if self.done:
                    future.set_result(None)
            return self._outcome

    def _make_future(self) -> Any:
        """Return the future that is completed here, and create the dependent futures that callers get.

        An error raised in a callback is also an error in C++, where DDP waits; `Future.set_exception` sets a value
        there.
        """
        future: Any = Future()

        def tensors_or_error(_: Any) -> list[Tensor]:
            if self.error is not None:
                raise self.error
            return self._result

        self._outcome = future.then(tensors_or_error)
        return future


class GlooMessage(Work):
    """A message to or from another host: a gloo operation whose error names the lost rank."""

    def __init__(self, work: Any, watch: FailureWatch) -> None:
        super().__init__()
        self._work, self._watch = work, watch

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        try:
            return bool(self._work.wait(timeout))
        except RuntimeError as error:
            raise self._watch.explain(error) from None

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def source_rank(self) -> int:
        return int(self._work._source_rank())

    _source_rank = source_rank


class Progress:
    """Runs the operations of one group: collectives one after another, messages concurrently."""

    def __init__(self, watch: FailureWatch, advance_messages: Callable[[], None], *, crowded: bool = True) -> None:
        """`advance_messages` sends and receives without waiting; `crowded` means that ranks share cores."""
        self.lock = threading.RLock()
        self._watch = watch
        self._advance_messages = advance_messages
        self._spin_seconds = CROWDED_SPIN_SECONDS if crowded else SPIN_SECONDS
        self._idle_linger = LINGER_SECONDS if crowded else IDLE_LINGER_SECONDS
        self._collectives: deque[GroupWork] = deque()
        self._messages: list[GroupWork] = []
        self._failure: BaseException | None = None
        self._waiting = 0
        self._idle: dict[tuple[Any, ...], int] = {}
        """How often operations are still believed to leave the program nothing to do."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, work: GroupWork, *, blocking: bool = False) -> GroupWork:
        """Start an operation; it ends later unless it is blocking."""
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
                self._hand_over(work)
        if work.error is not None and blocking:
            raise work.error
        return work

    def poll(self, work: GroupWork) -> bool:
        """Advance all operations, and return whether this one has ended."""
        if not work.done and self.lock.acquire(blocking=False):
            try:
                self._advance()
            finally:
                self.lock.release()
        return work.done

    def wait(self, work: GroupWork) -> None:
        """Advance all operations until this one has ended, and raise its error."""
        if not work.done:
            with self._waits():
                left = max(0.0, work.until - time.perf_counter())
                if not self._spin(work, min(left, self._spin_seconds)):
                    first = max(0.0, work.until - time.perf_counter())
                    wait(lambda: self._poll_or_pause(work), lambda _: self._check(work), first)
        if work.error is not None:
            raise work.error

    def fail(self, error: BaseException) -> None:
        """Make all current and later operations fail with an error."""
        with self.lock:
            self._failure = self._failure or error
            for work in (*self._collectives, *self._messages):
                work.finish(error)
            self._collectives.clear()
            self._messages.clear()

    def explain(self, error: BaseException) -> BaseException:
        """Return the cause of an error; after a network error or an interrupt, the group cannot continue."""
        if isinstance(error, TrainingError):
            return error
        reason = self._watch.explain(error)
        self._failure = self._failure or reason
        return reason

    def carry_on(self, *, check: bool = False) -> list[GroupWork]:
        """Advance all operations once, and return those in progress; with `check`, end those whose ranks are lost."""
        with self.lock:
            self._advance()
            pending = [*list(self._collectives)[:1], *self._messages]
        now = time.perf_counter()
        for work in pending:
            if check or now > work.until:
                self._check(work)
        return pending

    def close(self) -> None:
        atexit.unregister(self.close)
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(END_SECONDS)

    @contextmanager
    def _waits(self) -> Iterator[None]:
        """In this block, this thread advances the operations, and the group's thread pauses."""
        with self.lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self.lock:
                self._waiting -= 1
            self._wake_thread()

    def _network_wait(self) -> Any:
        """Return the `NetworkWait` of the current operation, unless it waits for shared memory."""
        try:
            ready = self._collectives[0].ready
        except IndexError:  # read without the lock: another thread may just have ended the last one
            return None
        return ready if hasattr(ready, "rest") else None

    def _poll_or_pause(self, work: GroupWork) -> bool:
        if self.poll(work):
            return True
        if (network := self._network_wait()) is not None:
            network.rest(NETWORK_NAP_SECONDS)
        return False

    def _spin(self, work: GroupWork, seconds: float) -> bool:
        """Advance all operations for a time, or until this one has ended, and return whether it has."""
        until = time.perf_counter() + seconds
        for _ in range(POLLS):
            if self.poll(work):
                return True
        while self._network_wait() is None and time.perf_counter() <= until:
            is_free = _is_core_free()
            if self.poll(work):
                return True
            if not is_free:
                break
        return False

    def _linger(self, work: GroupWork) -> None:
        """Advance an operation for a moment, or longer if the program is idle; then leave it to the group's thread."""
        trust = self._idle.get(work.key, 0)
        if trust:
            self._idle[work.key] = trust - 1
        if not self._spin(work, self._idle_linger if trust else LINGER_SECONDS):
            self._hand_over(work)

    def _hand_over(self, work: GroupWork) -> None:
        """Hand an operation of this thread over to the group's thread."""
        work.clock = _own_clock()
        self._wake_thread()

    def _wake_thread(self) -> None:
        with self.lock:
            if not (self._collectives or self._messages):
                return
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve, daemon=True, name="tenfold-process-group")
                atexit.register(self.close)  # Python ends daemon threads inside C++ code, which aborts the process
                self._thread.start()
        self._wake.set()

    def _serve(self) -> None:
        """Advance operations while no thread waits for them, at full speed if the program is idle, too.

        DDP waits for its futures in C++; the thread that started the operation then uses no processor time.
        """
        checked = seen = time.perf_counter()
        ahead: GroupWork | None = None
        used = used_first = 0.0
        while not self._closed:
            if self._waiting or not (self._collectives or self._messages):
                ahead = None
                self._wake.wait()
                self._wake.clear()
                checked = time.perf_counter()
                continue
            now = time.perf_counter()
            pending = self.carry_on(check=now > checked + CHECK_SECONDS)
            if now > checked + CHECK_SECONDS:
                checked = now
            if ahead is not None and ahead.done:
                self._remember(ahead, time.perf_counter() - seen, _processor_time(ahead.clock) - used_first)
            if not pending:
                continue
            if pending[0] is not ahead:
                ahead, seen = pending[0], now
                used_first = used = _processor_time(ahead.clock)
            if (network := self._network_wait()) is not None:
                network.rest(NETWORK_NAP_SECONDS)
                continue
            used, before = _processor_time(ahead.clock), used
            is_idle = used == before and now - seen < self._spin_seconds
            if not (is_idle and _is_core_free()):
                time.sleep(min(LONGEST_NAP, max(NAP_SECONDS, (now - seen) / 50)))

    def _remember(self, work: GroupWork, seconds: float, computed: float) -> None:
        """Remember whether the program computed while the group's thread advanced this operation."""
        if len(self._idle) >= MOST_WATCHED:
            self._idle.clear()
        self._idle[work.key] = TRUSTED if computed < IDLE_SHARE * seconds else 0

    def _advance(self) -> None:
        collectives = self._collectives
        while collectives:
            ahead = collectives[0]
            if not ahead.advance():
                break
            if collectives and collectives[0] is ahead:  # a callback of its future may have advanced it
                collectives.popleft()
        if self._messages:
            self._advance_messages()
            for work in list(self._messages):
                if work.advance() and work in self._messages:
                    self._messages.remove(work)

    def _check(self, work: GroupWork) -> None:
        """Make an operation fail if ranks that it waits for are lost, or if it has timed out."""
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


def _is_core_free() -> bool:
    """Yield the core, and return whether hardly any other thread used it."""
    before = time.perf_counter()
    yield_core()
    return time.perf_counter() - before < BUSY_SECONDS


def _own_clock() -> int:
    """Return the clock of this thread's processor time; -1 if the system has none."""
    return time.pthread_getcpuclockid(threading.get_ident()) if hasattr(time, "pthread_getcpuclockid") else -1


def _processor_time(clock: int) -> float:
    """Return the processor time of a thread; 0 if it is unknown, or the thread has ended."""
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0
