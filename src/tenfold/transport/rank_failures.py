"""Detects ranks of a launcher that died, were stopped or hang, and ends the waiting of the others.

For worker processes, see `workers/pool.py`.
"""

import atexit
import os
import queue
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

from tenfold.errors import WorkerLost
from tenfold.machine.cores import MemoryHint
from tenfold.machine.liveness import LOOK_SECONDS, LifeWatch, is_alive
from tenfold.machine.rank_guard import GuardAddress, current_guard, kill_if_stopped
from tenfold.transport.base import CHECK_SECONDS
from tenfold.transport.codec import decode_error, encode_error
from tenfold.transport.network import START_SECONDS

STOP_SECONDS = 2.0


class WaitingThread:
    """A thread for blocking calls, so that the caller can check for failures and receive Ctrl-C."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.is_idle = True
        """Whether no call is being made."""
        _all.add(self)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="tenfold-waiting")
        self._thread.start()

    def wait(self, call: Callable[[], Any], check: Callable[[float], None], timeout: float) -> None:
        """Make the call in the thread, and call `check` repeatedly; an error from it ends the waiting."""
        self.is_idle = False
        self._calls.put(call)
        until = monotonic() + timeout
        while True:
            try:
                error = self._results.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                check(CHECK_SECONDS)
                if monotonic() > until:
                    raise TimeoutError from None
                continue
            if error is not None:
                raise error
            return

    def stop(self) -> None:
        """End the thread, unless it is blocked."""
        self._calls.put(None)
        if self.is_idle:
            self._thread.join(STOP_SECONDS)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            result: BaseException | None = None
            try:
                call()
            except BaseException as error:
                result = error
            call = None  # release its objects before the caller continues
            self.is_idle = True
            self._results.put(result)


_all: "weakref.WeakSet[WaitingThread]" = weakref.WeakSet()


def is_any_stuck() -> bool:
    """Return whether a thread still waits in a library; it would crash the interpreter at exit."""
    return any(not waiting.is_idle for waiting in list(_all))


def _exit_if_stuck() -> None:
    """End the process immediately if a thread that waits for a lost rank would crash the interpreter.

    It is registered when this module is loaded, so functions that are registered later still run.
    """
    if is_any_stuck():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(2)


atexit.register(_exit_if_stuck)


# Detects that a rank died, was stopped or left, through a store that all ranks reach.
#
# For ranks on the same host, the kernel tells whether they have ended or are stopped. For ranks of other hosts, every
# rank writes a heartbeat, a growing number, to the store twice a second. It does so from a thread, which does not run
# while a call into C holds Python's global lock. Therefore a rank without a heartbeat for `HEARTBEAT_TIMEOUT_SECONDS`
# seconds counts as lost only if its guard does not confirm that it runs (`machine/rank_guard.py`). The first failure
# that any rank reports or detects is kept in the store, and all ranks raise it.

HEARTBEAT_SECONDS = LOOK_SECONDS
"""Seconds between two heartbeats."""
HEARTBEAT_TIMEOUT_SECONDS = 5.0
"""Seconds without a heartbeat after which a rank is lost, and that one of this host may be stopped."""
LEFT = b"left"


class KeyValueStore(Protocol):
    """The methods of torch's stores used here; each waits for the server's answer."""

    def set(self, key: str, value: Any, /) -> None: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def compare_set(self, key: str, expected: Any, desired: Any, /) -> bytes: ...


class Meeting(Protocol):
    """The part of a `Network` needed to start a failure detector."""

    rank: int

    def all_gather(self, value: Any) -> list[Any]: ...
    def barrier(self, timeout: float | None = None, /) -> None: ...


class FailureDetector:
    """One rank's heartbeat, and its view of the others' heartbeats."""

    def __init__(
        self,
        store: KeyValueStore,
        rank: int,
        names: list[str],
        guards: Mapping[int, GuardAddress] | None = None,
    ) -> None:
        """Send the first heartbeat; `names` are for error messages. All ranks must have done this before any starts.

        `guards` tell whether ranks of other hosts are running.
        """
        self._store = store
        self._rank = rank
        self._names = names
        self._guards = guards or {}
        self._watch_processes = LifeWatch()
        self._memory = MemoryHint()
        self._beats = 0
        self._failure: BaseException | None = None
        self._failed = threading.Event()
        self._over = threading.Event()
        self._checks = 0
        self._left_since: dict[int, float] = {}
        self._local_pids: Mapping[int, int] = {}
        self._beat()
        self._store.compare_set("failure", "", "")
        self._thread = threading.Thread(target=self._watch, daemon=True, name="tenfold-failure-detector")

    def start(self, local_pids: Mapping[int, int]) -> None:
        """Watch the others; `local_pids` are the processes of the other ranks that share this rank's host name.

        A process that is not found runs in another container with the same name; only its heartbeat is watched.
        """
        self._local_pids = {rank: pid for rank, pid in local_pids.items() if is_alive(pid)}
        self._thread.start()

    def report(self, error: BaseException | None) -> None:
        """Report that this rank failed; only the first report is kept."""
        if self._failure is None:
            self._decide(error)

    def failure(self, within: float = 0.0) -> BaseException | None:
        """Return the error that keeps the ranks from continuing; None if there is none within `within` seconds."""
        self._failed.wait(within)
        return self._failure

    def check(self, seconds: float) -> None:
        """Raise the failure, if there is one; called about every `seconds` by a thread that waits for another rank.

        The time without an answer from the store is counted in calls, because a process that was stopped made no calls.
        """
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        for rank, since in list(self._left_since.items()):
            if now - since > HEARTBEAT_TIMEOUT_SECONDS:
                self._lose(rank, f"{self._names[rank]} ended while other ranks wait for it")
        self._checks += 1
        if self._checks * seconds > HEARTBEAT_TIMEOUT_SECONDS + 2 * HEARTBEAT_SECONDS and 0 not in self._left_since:
            silent = f"{HEARTBEAT_TIMEOUT_SECONDS:g} s"
            sentence = f"{self._names[0]} has not answered for {silent}: it was stopped, or its host is cut off"
            self._learn(WorkerLost(0, sentence))

    def check_local_processes(self) -> None:
        for rank, pid in self._local_pids.items():
            if rank not in self._left_since and not is_alive(pid):
                self._lose(rank, f"{self._names[rank]} died{self._memory}")

    def stop(self, patience: float, *, hosts_store: bool = False) -> None:
        """Leave; after a failure, or with the store, wait up to `patience` seconds for the others to leave."""
        self._over.set()
        leaving = threading.Thread(target=self._leave, args=(patience, hosts_store), daemon=True, name="tenfold-leave")
        leaving.start()
        leaving.join(patience + 2 * HEARTBEAT_SECONDS)

    def _leave(self, patience: float, hosts_store: bool) -> None:
        self._thread.join()
        try:
            self._store.set(f"beat/{self._rank}", LEFT)
            until = time.monotonic() + patience
            while (self._failure is not None or hosts_store) and time.monotonic() < until:
                beats = self._store.multi_get([f"beat/{rank}" for rank in range(len(self._names))])
                lost = self._failure.rank if isinstance(self._failure, WorkerLost) else None
                if all(beat == LEFT or rank == lost for rank, beat in enumerate(beats)):
                    break
                time.sleep(0.1)
        except RuntimeError:  # the store ended with its host
            return

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(f"beat/{self._rank}", str(self._beats))

    def _watch(self) -> None:
        keys = [f"beat/{rank}" for rank in range(len(self._names))]
        latest: list[tuple[bytes, float]] = [(b"", time.monotonic())] * len(keys)
        while not self._over.wait(HEARTBEAT_SECONDS):
            try:
                self._beat()
                *beats, failure = self._store.multi_get([*keys, "failure"])
            except RuntimeError:  # the store does not answer; `check` counts how long
                if 0 in self._left_since:  # rank 0 left in order, and the store with it
                    return
                self._check_host_of_store()
                continue
            now = time.monotonic()
            if self._watch_processes.look(now):  # this process was stopped itself and cannot tell yet
                latest = [(beat, now) for beat in beats]
                self._left_since = dict.fromkeys(self._left_since, now)
            self._checks = 0
            if failure:
                self._learn(decode_error(failure))
            for rank, beat in enumerate(beats):
                if beat == LEFT:
                    self._left_since.setdefault(rank, now)
                elif beat != latest[rank][0] or rank in self._local_pids:
                    latest[rank] = (beat, now)
                elif now - latest[rank][1] > HEARTBEAT_TIMEOUT_SECONDS:
                    if rank in self._guards and self._guards[rank].answers():
                        latest[rank] = (beat, now)
                    else:
                        self._lose(
                            rank, f"{self._names[rank]} has sent no heartbeat for {HEARTBEAT_TIMEOUT_SECONDS:g} s"
                        )
            self.check_local_processes()
            self._check_stopped(now)

    def _check_stopped(self, now: float) -> None:
        """Report a stopped rank of this host and kill it, because launchers wait for it, some for half a minute."""
        stopped = self._watch_processes.stopped_for(self._local_pids.values(), now)
        for rank, pid in self._local_pids.items():
            if rank not in self._left_since and stopped.get(pid, 0.0) > HEARTBEAT_TIMEOUT_SECONDS:
                self._lose(
                    rank, f"{self._names[rank]} was stopped and has not continued for {HEARTBEAT_TIMEOUT_SECONDS:g} s"
                )
                kill_if_stopped(pid)

    def _check_host_of_store(self) -> None:
        """Report rank 0, which may host the store, if its process has ended."""
        if not self._over.is_set() and 0 in self._local_pids and not is_alive(self._local_pids[0]):
            self._learn(WorkerLost(0, f"{self._names[0]} died{self._memory}"))

    def _lose(self, rank: int, sentence: str) -> None:
        if self._failure is None:
            self._decide(WorkerLost(rank, sentence))

    def _decide(self, error: BaseException | None) -> None:
        report = encode_error(error, self._rank)
        try:
            stands = self._store.compare_set("failure", "", report)
        except RuntimeError:
            stands = report
        self._learn(decode_error(stands))

    def _learn(self, failure: BaseException) -> None:
        if self._failure is None:
            self._failure = failure
            self._failed.set()


def start_detector(network: Meeting, store: Any) -> FailureDetector | None:
    """Return this rank's failure detector, which uses a store that all ranks reach; None without a store.

    All ranks call this together.
    """
    here, guard = socket.gethostname(), current_guard()
    address = None if guard is None or guard.address is None else guard.address
    answering = None if address is None else (list(address.addresses), address.port, address.token)
    places = network.all_gather((here, os.getpid(), answering))
    if store is None:
        return None
    import torch.distributed as dist

    names = [f"worker {rank} (process {pid} on {host})" for rank, (host, pid, _) in enumerate(places)]
    guards = {rank: GuardAddress(tuple(at[0]), at[1], at[2]) for rank, (*_, at) in enumerate(places) if at is not None}
    store = dist.PrefixStore("failure-detector", store)  # type: ignore[attr-defined]
    detector = FailureDetector(store, network.rank, names, guards)
    network.barrier(START_SECONDS)
    detector.start({rank: pid for rank, (host, pid, _) in enumerate(places) if host == here and rank != network.rank})
    return detector
