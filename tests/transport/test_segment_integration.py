"""Locks on a shared segment keep processes apart, and end with their holder."""

import multiprocessing
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from tenfold.transport import Segment

pytestmark = pytest.mark.timeout(60)
TIMES = 2000


def add(name: str) -> None:
    segment = Segment.attach(name)
    lock, box = segment.lock(3), segment.mailboxes
    for _ in range(TIMES):
        with lock:
            box[0, 0] = box[0, 0] + 1


def hold(name: str, held: str) -> None:
    with Segment.attach(name).lock(3):
        Path(held).touch()
        time.sleep(60)


def test_no_addition_is_lost() -> None:
    with closing(Segment.create(2, 1)) as segment:
        workers = [multiprocessing.get_context("fork").Process(target=add, args=(segment.name,)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert segment.mailboxes[0, 0] == 3 * TIMES


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    with closing(Segment.create(2, 1)) as segment:
        held = tmp_path / "held"
        holder = multiprocessing.get_context("fork").Process(target=hold, args=(segment.name, str(held)))
        holder.start()
        while not held.exists():
            time.sleep(0.02)
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        with segment.lock(3):
            holder.join()
