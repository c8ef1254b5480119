"""A rank that is stopped before the ranks have met, seen from another one of its host."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tenfold.errors import WorkerLost
from tenfold.launch.detect import World
from tenfold.transport.network.start_watch import StartWatch

WORLD = World(rank=0, size=2, local_rank=0, local_size=2, launcher="torchrun", launch="one")
RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "one"}
SILENCE = 0.1


@contextmanager
def stopped(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with these variables, and stop it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=variables) as process:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield process
        finally:
            process.kill()


def check_until_it_raises(watch: StartWatch) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        watch.check()
        time.sleep(0.02)


@pytest.mark.timeout(60)
def test_it_is_named() -> None:
    watch, sentence = StartWatch(WORLD, os.getpid(), SILENCE), r"worker 1 \(process \d+ on .*was stopped before"
    with stopped(**RANK), watch, pytest.raises(WorkerLost, match=sentence) as lost:
        check_until_it_raises(watch)
    assert lost.value.rank == 1


@pytest.mark.timeout(60)
def test_processes_of_other_launches_do_not_matter() -> None:
    other = RANK | {"TORCHELASTIC_RUN_ID": "two"}
    with stopped(), stopped(**other), StartWatch(WORLD, os.getpid(), SILENCE) as watch:
        time.sleep(5 * SILENCE)
        watch.check()
