"""Heartbeats through a store: who is watched, and what values in the store can do."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tenfold.errors import TrainingError, WorkerLost
from tenfold.machine.rank_guard import GuardAddress
from tenfold.transport import rank_failures
from tenfold.transport.rank_failures import FailureDetector, WaitingThread, is_any_stuck

HEARTBEAT_SECONDS = 0.02


@pytest.mark.timeout(60)
def test_a_neighbor_with_a_process_of_another_container_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_failures, "HEARTBEAT_SECONDS", HEARTBEAT_SECONDS)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    store = dist.HashStore()
    one, other = (FailureDetector(store, rank, ["worker 0", "worker 1"]) for rank in range(2))
    one.start({1: ended.pid})
    other.start({})
    try:
        assert one.failure(within=10 * HEARTBEAT_SECONDS) is None
    finally:
        for each in (one, other):
            each.stop(patience=1.0)


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.timeout(60)
def test_a_value_that_another_client_sets_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_failures, "HEARTBEAT_SECONDS", HEARTBEAT_SECONDS)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    attacker = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    attacked, payload = tmp_path / "attacked", pickle.dumps(Payload(tmp_path / "attacked"))
    pickle.loads(pickle.dumps(Payload(tmp_path / "control")))
    assert (tmp_path / "control").exists()
    detector = FailureDetector(server, 0, ["worker 0", "worker 1"])
    attacker.set("beat/1", payload)
    attacker.set("failure", payload)
    detector.start({})
    try:
        failure = detector.failure(within=10)
    finally:
        detector.stop(patience=0.1)
    assert isinstance(failure, TrainingError)
    assert "cannot be read" in str(failure)
    assert not attacked.exists()


def check_for_ever(detector: FailureDetector) -> None:
    while True:
        detector.check(HEARTBEAT_SECONDS)
        time.sleep(HEARTBEAT_SECONDS)


@pytest.mark.timeout(60)
def test_a_rank_that_left_is_named_by_those_who_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_failures, "HEARTBEAT_SECONDS", HEARTBEAT_SECONDS)
    monkeypatch.setattr(rank_failures, "HEARTBEAT_TIMEOUT_SECONDS", 10 * HEARTBEAT_SECONDS)
    store = dist.HashStore()
    one, other = (FailureDetector(store, rank, ["worker 0", "worker 1"]) for rank in range(2))
    one.start({})
    other.start({})
    other.stop(patience=1.0)
    with pytest.raises(WorkerLost, match="worker 1 ended") as lost:
        check_for_ever(one)
    one.stop(patience=0.1)
    assert lost.value.rank == 1


class Guard(GuardAddress):
    """A guard on another host that says whether its rank runs."""

    def __init__(self, *, running: bool) -> None:
        super().__init__((), 0, "")
        object.__setattr__(self, "running", running)

    def answers(self) -> bool:
        return bool(vars(self)["running"])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("running", [True, False])
def test_a_silent_rank_of_another_host_is_lost_unless_its_guard_says_that_it_runs(
    monkeypatch: pytest.MonkeyPatch, *, running: bool
) -> None:
    monkeypatch.setattr(rank_failures, "HEARTBEAT_SECONDS", HEARTBEAT_SECONDS)
    monkeypatch.setattr(rank_failures, "HEARTBEAT_TIMEOUT_SECONDS", 5 * HEARTBEAT_SECONDS)
    store = dist.HashStore()
    guards = {1: Guard(running=running)}
    one, _silent = (FailureDetector(store, rank, ["worker 0", "worker 1"], guards) for rank in range(2))
    one.start({})
    try:
        failure = one.failure(within=30 * HEARTBEAT_SECONDS if running else 30)
    finally:
        one.stop(patience=0.1)
    assert (failure is None) == running


@pytest.mark.timeout(60)
def test_of_a_rank_of_this_host_the_kernel_says_whether_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_failures, "HEARTBEAT_SECONDS", HEARTBEAT_SECONDS)
    monkeypatch.setattr(rank_failures, "HEARTBEAT_TIMEOUT_SECONDS", 5 * HEARTBEAT_SECONDS)
    store = dist.HashStore()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as silent:
        one, _ = (FailureDetector(store, rank, ["worker 0", "worker 1"]) for rank in range(2))
        one.start({1: silent.pid})
        try:
            assert one.failure(within=30 * HEARTBEAT_SECONDS) is None
            os.kill(silent.pid, signal.SIGSTOP)
            failure = one.failure(within=30)
        finally:
            one.stop(patience=0.1)
            silent.kill()
    assert isinstance(failure, WorkerLost)
    assert failure.rank == 1


def test_a_thread_is_stuck_only_while_its_call_lasts():
    thread, released, begun = WaitingThread(), threading.Event(), threading.Event()

    def block():
        begun.set()
        released.wait(30)

    def fail(_seconds):
        raise RuntimeError("a rank was lost")

    with pytest.raises(RuntimeError, match="a rank was lost"):
        thread.wait(block, fail, timeout=30)
    assert begun.wait(30)
    assert is_any_stuck()
    released.set()
    thread.stop()
    thread._thread.join(30)
    assert thread.is_idle
