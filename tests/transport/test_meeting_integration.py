"""A rank that is stopped before the ranks have met, seen from others of its host and from other hosts."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from tenfold.errors import MachineError, TrainingError, WorkerLost
from tenfold.launchers import World, detect_world
from tenfold.transport import meeting as world
from tenfold.transport.meeting import StartupWatch, report_stop

WORLD = World(rank=0, size=2, local_rank=0, local_size=2, launcher="torchrun", launch="one")


RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "one"}


HEARTBEAT_TIMEOUT_SECONDS = 0.1


@contextmanager
def stopped(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with these variables, and stop it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=variables) as process:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield process
        finally:
            process.kill()


def check_until_it_raises(watch: StartupWatch) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        watch.check()
        time.sleep(0.02)


@pytest.mark.timeout(60)
def test_it_is_named() -> None:
    watch, sentence = (
        StartupWatch(WORLD, os.getpid()),
        r"worker 1 \(process \d+ on .*was stopped before",
    )
    with stopped(**RANK), watch, pytest.raises(WorkerLost, match=sentence) as lost:
        check_until_it_raises(watch)
    assert lost.value.rank == 1


@pytest.mark.timeout(60)
def test_processes_of_other_launches_do_not_matter() -> None:
    other = RANK | {"TORCHELASTIC_RUN_ID": "two"}
    with stopped(), stopped(**other), StartupWatch(WORLD, os.getpid()) as watch:
        time.sleep(5 * HEARTBEAT_TIMEOUT_SECONDS)
        watch.check()


@pytest.fixture
def launchers_store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store such as torchrun offers, for ranks on two hosts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        fd = os.dup(listener.fileno())
    return dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=fd)


ON_TWO_HOSTS = replace(WORLD, local_size=1)


@pytest.mark.timeout(60)
def test_a_rank_that_was_stopped_on_another_host_is_named(launchers_store: Any) -> None:
    report_stop(replace(ON_TWO_HOSTS, rank=1), WorkerLost(1, "worker 1 was stopped"))
    with StartupWatch(ON_TWO_HOSTS, os.getpid()) as watch, pytest.raises(WorkerLost, match="worker 1 was stopped"):
        check_until_it_raises(watch)


@pytest.mark.timeout(60)
def test_a_rank_that_does_not_come_is_named(launchers_store: Any) -> None:
    watch = StartupWatch(ON_TWO_HOSTS, os.getpid(), start_seconds=0.1)
    with watch, pytest.raises(WorkerLost, match="worker 1 "):
        check_until_it_raises(watch)


@pytest.mark.timeout(60)
def test_a_report_that_cannot_be_read_runs_nothing(launchers_store: Any) -> None:
    launchers_store.set("tenfold-start/0/lost", b"cos\nsystem\n(S'exit 1'\ntR.")
    with StartupWatch(ON_TWO_HOSTS, os.getpid()) as watch, pytest.raises(TrainingError, match="cannot be read"):
        check_until_it_raises(watch)


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


def test_ranks_that_failed_are_not_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    found = detect_world()
    assert found is not None
    failure: Any = None
    joined: Any = SimpleNamespace(network=SimpleNamespace(failure=lambda: failure))
    monkeypatch.setitem(world._joined, "torch", joined)
    assert world.join(found) is joined
    failure = RuntimeError("worker 1 failed:\nTraceback\nValueError: bad batch\n")
    with pytest.raises(MachineError, match="ValueError"):
        world.join(found)
