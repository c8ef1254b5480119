"""When a process is stopped, or a worker has made no progress for too long."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import start_forked
from waiting import wait_until

from tenfold.machine import liveness as module
from tenfold.machine.liveness import GAP_SECONDS, LifeWatch, WorkerProgress, cpu_seconds, is_stopped


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def two() -> list[WorkerProgress]:
    floats = [0.0] * 10
    return [WorkerProgress(floats, place) for place in range(2)]


def step(workers: list[WorkerProgress], clock: Clock, seconds: float, count: int = 4) -> None:
    for _ in range(count):
        clock.now += seconds
        for worker in workers:
            worker.mark()


def test_workers_that_publish_nothing_are_not_watched(two: list[WorkerProgress]) -> None:
    assert LifeWatch(two, 1).find_stalled(1e9) == {}


def test_the_limit_follows_the_longest_step(two: list[WorkerProgress], clock: Clock) -> None:
    watch = LifeWatch(two, None)
    step(two, clock, 0.1)
    assert watch.find_stalled(clock.now + 59) == {}
    assert watch.find_stalled(clock.now + 61) == {0: 60, 1: 60}
    step(two, clock, 10)
    assert watch.find_stalled(clock.now + 199) == {}
    assert watch.find_stalled(clock.now + 201).keys() == {0, 1}


def test_the_first_steps_may_take_longer(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 30, count=2)
    assert LifeWatch(two, None).find_stalled(clock.now + 599) == {}
    assert LifeWatch(two, None).find_stalled(clock.now + 601) == {0: 600, 1: 600}
    assert LifeWatch(two, 3).find_stalled(clock.now + 4) == {0: 3, 1: 3}


def test_startup_and_saving_may_take_longer(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 0.1)
    with two[0].allow_more_time():
        two[1].mark_waiting()
        assert LifeWatch(two, 3).find_stalled(clock.now + 40) == {1: 3}
        assert LifeWatch(two[:1], None).find_stalled(clock.now + 599) == {}
        clock.now += 100
    assert LifeWatch(two[:1], None).find_stalled(clock.now + 59) == {}
    assert LifeWatch(two[:1], None).find_stalled(clock.now + 61) == {0: 60}


def test_a_process_that_works_at_startup_is_not_stalled(
    two: list[WorkerProgress], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {11: 0.0, 22: 5.0}
    monkeypatch.setattr(module, "cpu_seconds", lambda pid: used[pid])
    watch, pids, began = LifeWatch(two, 3), {0: 11, 1: 22}, clock.now
    with two[0].allow_more_time(), two[1].allow_more_time():
        while clock.now < began + 59:
            used[11] += 0.4
            clock.now += 1
            assert watch.find_stalled(clock.now, pids) == {}
        clock.now += 2
        assert watch.find_stalled(clock.now, pids).keys() >= {1}
        two[1].mark_waiting()
        while clock.now < began + 700:
            used[11] += 0.4
            clock.now += 1
            two[1].mark_waiting()
            if watch.find_stalled(clock.now, pids):
                break
        assert 600 < clock.now - began < 670, "it works for ever"


def test_the_processor_time_of_a_process_is_known() -> None:
    before = cpu_seconds(os.getpid())
    wait_until(lambda: sum(range(10**6)) and cpu_seconds(os.getpid()) > before + 0.05)
    assert cpu_seconds(2**22 + 1) == 0.0


def test_who_waits_for_others_is_not_stalled(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 0.1)
    clock.now += 100
    two[1].mark_waiting()
    assert LifeWatch(two, None).find_stalled(clock.now) == {0: 60}


def test_after_a_gap_between_two_looks_all_have_a_fresh_start(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 0.1)
    watch = LifeWatch(two, 3)
    watch.look(clock.now)
    assert watch.look(clock.now + 100)
    assert watch.find_stalled(clock.now + 102) == {}
    assert watch.find_stalled(clock.now + 104) == {0: 3, 1: 3}


def test_the_time_of_a_stop_is_counted_from_the_last_gap() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: is_stopped(process.pid))
            watch = LifeWatch()
            watch.look(1000.0)
            assert watch.stopped_for([process.pid, os.getpid()], 1000.0) == {process.pid: 0.0}
            assert not watch.look(1001.0)
            assert watch.stopped_for([process.pid], 1001.0) == {process.pid: 1.0}
            later = 1001.0 + 2 * GAP_SECONDS
            assert watch.look(later)
            assert watch.stopped_for([process.pid], later) == {process.pid: 0.0}
        finally:
            process.kill()


def test_another_worker_begins_anew(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 0.1)
    two[0].clear()
    assert LifeWatch(two, 3).find_stalled(clock.now + 4) == {1: 3}


class ClearedWhenRead(WorkerProgress):
    """A worker that ends its fold, and forgets its progress, right after somebody looked at it."""

    def get(self, field: int) -> float:
        found = super().get(field)
        self.clear()
        return found


def test_a_worker_that_clears_its_progress_meanwhile_is_not_stalled(clock: Clock) -> None:
    worker = ClearedWhenRead([0.0] * 5, 0)
    worker.mark()
    assert LifeWatch([worker], None).find_stalled(clock.now + 1) == {}


PROGRAM = """
import pathlib
import resource
import torch
from tenfold.machine import liveness as process_state

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        [torch.ones(40 << 20, dtype=torch.uint8) for _ in range(2)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if kept:
    process_state.keep_freed_memory()
faults()
pathlib.Path(result).write_text(str(faults()))
"""


def run(program: str, result: Path, **names: Any) -> int:
    """Run a program in a process of its own, and return the number that it writes."""
    process = start_forked(exec, program, {"result": str(result), **names})
    process.join(60)
    process.kill()
    return int(result.read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is told so on Linux only")
def test_pages_are_not_asked_for_again_and_again(tmp_path: Path) -> None:
    kept, usual = (run(PROGRAM, tmp_path / str(kept), kept=kept) for kept in (True, False))
    assert kept < 100
    assert usual > 10 * (kept + 1)


GIVEN_BACK = """
import pathlib
import psutil
import torch
from tenfold.machine import liveness as process_state

with process_state.keeping_freed_memory():
    kept = [torch.ones(40 << 20, dtype=torch.uint8) for _ in range(10)]
    kept = None
    inside = psutil.Process().memory_info().rss
pathlib.Path(result).write_text(str(inside - psutil.Process().memory_info().rss))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is told so on Linux only")
def test_the_memory_of_a_block_is_returned_after_it(tmp_path: Path) -> None:
    assert run(GIVEN_BACK, tmp_path / "result") > 300 << 20
