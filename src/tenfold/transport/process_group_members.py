"""The ranks of a process group: they meet, share memory, and find out what happened to missing ranks."""

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tenfold.errors import MachineError, TenfoldError
from tenfold.launchers import detect_world
from tenfold.machine.liveness import LifeWatch, is_alive
from tenfold.machine.rank_guard import kill_if_stopped, start_guard
from tenfold.transport.base import CHECK_SECONDS, wait
from tenfold.transport.meeting import REPORT_STOP
from tenfold.transport.network import LEAVE_SECONDS, Hosts, hosts_of, share_memory
from tenfold.transport.process_group_work import CollectiveError, GroupWork, RankLost
from tenfold.transport.rank_failures import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT_SECONDS,
    FailureDetector,
    start_detector,
)
from tenfold.transport.segment import Segment, StopReason
from tenfold.transport.shared_collectives import row_bytes
from tenfold.transport.shared_messages import ring_bytes


class Members:
    """The members of a group: all ranks by host, and the shared memory of this host."""

    def __init__(self, store: Any, rank: int, numbers: Sequence[int], timeout: float) -> None:
        """Meet the others; `numbers` are the global ranks, for error messages."""
        self.rank, self.size, self.numbers = rank, len(numbers), numbers
        self._store = store
        self._until = time.perf_counter() + timeout
        self._timeout = timeout
        self._pids: dict[int, int] = {}
        self._gathered = 0
        self.detector: FailureDetector | None = None
        places = self.all_gather([socket.gethostname(), os.getpid()])
        names = [str(host) for host, _ in places]
        self._pids = {other: pid for other, (host, pid) in enumerate(places) if host == names[rank] and other != rank}
        self.hosts: Hosts = hosts_of(names)
        shared = self._share()
        if shared is None:  # containers with the same host name
            self.hosts = tuple((other,) for other in range(self.size))
            shared = self._share()
        if shared is None:
            raise MachineError(f"rank {numbers[rank]} cannot create shared memory")
        self.segment = shared
        self.detector = self._detect_failures() if len(self.hosts) > 1 else None

    def leave(self) -> None:
        """Close the memory, and tell the ranks of other hosts that this one has left."""
        self.segment.close()
        if self.detector is not None and _detectors.get(os.getpid()) is self:
            del _detectors[os.getpid()]
            self.detector.stop(LEAVE_SECONDS)

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value, of JSON types, by rank."""
        self._gathered += 1
        return [json.loads(text) for text in self._exchange(f"gathered/{self._gathered}", json.dumps(value))]

    def barrier(self, timeout: float | None = None, /) -> None:  # noqa: ARG002 - that of the group applies
        """Wait until every rank has called this."""
        self.all_gather(None)

    def _detect_failures(self) -> FailureDetector | None:
        """Return the failure detector of this process, which the first group on several hosts starts."""
        if os.getpid() in _detectors:
            return _detectors[os.getpid()].detector
        world = detect_world()
        guard = start_guard(world, REPORT_STOP) if world is not None and world.local_size < world.size else None
        store = self._store
        with suppress(RuntimeError, AttributeError):  # another connection, because this one may be blocked
            store = store.clone()
        detector = start_detector(self, store)
        if guard is not None:
            guard.note_meeting()
        _detectors[os.getpid()] = self
        return detector

    @property
    def host(self) -> tuple[int, ...]:
        return next(host for host in self.hosts if self.rank in host)

    def _share(self) -> Segment | None:
        """Share memory with the ranks of this host; None if any rank cannot."""
        size = len(self.host)
        numel = (row_bytes(size) + size * ring_bytes(size)) // 4
        make = partial(Segment.create, size, numel, contents="numbers", channels=True)
        return share_memory(self.all_gather, self.host, self.rank, make)

    def _exchange(self, key: str, value: str) -> list[str]:
        """Return every rank's value by rank; raise an error if a rank ends."""
        keys = [f"tenfold/{key}/{other}" for other in range(self.size)]
        self._store.set(keys[self.rank], value)
        missing = [other for other in range(self.size) if other != self.rank]

        def all_here() -> bool:
            while missing and self._store.check([keys[missing[-1]]]):
                missing.pop()
            return not missing

        wait(all_here, lambda _: self._check_missing(missing, keys))
        return [self._store.get(name).decode() for name in keys]

    def _check_missing(self, missing: Sequence[int], keys: Sequence[str]) -> None:
        for other in missing:
            pid = self._pids.get(other)
            if pid is not None and not is_alive(pid) and not self._store.check([keys[other]]):
                raise RankLost(self.numbers[other], f"rank {self.numbers[other]} (process {pid}) died")
        if time.perf_counter() > self._until:
            late = ", ".join(str(self.numbers[other]) for other in sorted(missing))
            raise RankLost(
                self.numbers[missing[0]], f"ranks {late} did not join the process group within {self._timeout:g} s"
            )


_detectors: dict[int, Members] = {}
"""By process: the group that has started the failure detector; a fork has none."""


class RankWatch:
    """Finds out what happened to ranks that an operation waits for."""

    def __init__(self, members: Members) -> None:
        """Watch the ranks of this host, and the heartbeats of ranks on other hosts."""
        self._members = members
        self._segment = members.segment
        self._host = members.host
        self._life = LifeWatch()
        self._detector = members.detector

    def leave(self) -> None:
        """Tell the others that this rank has left."""
        at = self._segment.pid_at(self._host.index(self._members.rank))
        self._segment.words[at] = -os.getpid()

    def explain(self, error: BaseException) -> BaseException:
        """Replace an error by RankLost if a lost rank of another host is its cause."""
        if not isinstance(error, Exception):
            return CollectiveError("this rank was interrupted during an operation")
        lost = (
            None
            if self._detector is None
            else self._detector.failure(within=HEARTBEAT_TIMEOUT_SECONDS + 4 * HEARTBEAT_SECONDS)
        )
        return RankLost(getattr(lost, "rank", 0), str(lost)) if lost is not None else error

    def check(self, work: GroupWork, is_late: bool, can_go_on: Callable[[], bool]) -> None:
        """Raise an error if a rank that an operation waits for is lost, or if the operation is late."""
        missing, now = work.missing(), time.monotonic()
        self._life.look(now)
        pids = {rank: self._segment.words[self._segment.pid_at(rank)] for rank in missing}
        stopped = self._life.stopped_for((pid for pid in pids.values() if pid > 0), now)
        for rank, pid in pids.items():
            reason = StopReason.LEFT if pid < 0 else StopReason.NONE if is_alive(pid) else StopReason.DIED
            if stopped.get(pid, 0.0) > HEARTBEAT_TIMEOUT_SECONDS:
                reason = StopReason.STOPPED
            elif is_late and reason is StopReason.NONE and work.transfer is None:
                reason = StopReason.LATE
            if reason is not StopReason.NONE:
                if can_go_on():  # a rank may finish its part and then leave
                    return
                self._segment.stop(reason, rank)
                if reason is StopReason.STOPPED:
                    kill_if_stopped(pid)  # a launcher waits for it
        reason, about = self._segment.stop_reason
        if reason is not StopReason.NONE:  # a rank that learns of a loss may leave before this rank learns of it
            raise self.explain(self._error(work, reason, about, missing))
        if self._detector is not None:
            self._check_hosts()
        if is_late:
            raise self._error(work, StopReason.LATE, 0, missing)

    def _check_hosts(self) -> None:
        assert self._detector is not None
        try:
            self._detector.check(CHECK_SECONDS)
        except TenfoldError as error:
            raise RankLost(getattr(error, "rank", 0), str(error)) from None

    def _error(self, work: GroupWork, reason: StopReason, about: int, missing: Sequence[int]) -> Exception:
        who = self._name([about])
        number = self._members.numbers[self._host[about]]
        if reason is StopReason.ASKED:
            return CollectiveError("the process group was aborted by one of its ranks; see its message")
        if reason is StopReason.LATE:
            late = self._name(missing or [about])
            return CollectiveError(f"{work.name}: Timed out after {work.timeout:g} s waiting for {late}")
        if reason is StopReason.LEFT:
            return RankLost(number, f"{work.name}: {who} left the process group while others still use it")
        if reason is StopReason.STOPPED:
            return RankLost(
                number, f"{work.name}: {who} was stopped and has not continued for {HEARTBEAT_TIMEOUT_SECONDS:g} s"
            )
        return RankLost(
            number,
            f"{work.name}: {who} died; look for its error message, or check whether this machine ran out of memory",
        )

    def _name(self, ranks: Sequence[int]) -> str:
        names = []
        for rank in ranks:
            pid = abs(self._segment.words[self._segment.pid_at(rank)])
            names.append(f"rank {self._members.numbers[self._host[rank]]} (process {pid or 'unknown'})")
        return ", ".join(names) or "another rank"
