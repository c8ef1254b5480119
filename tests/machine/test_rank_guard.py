"""The process beside a rank that says whether the rank runs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_until

from tenfold.errors import WorkerLost
from tenfold.launchers import World
from tenfold.machine.liveness import is_alive
from tenfold.machine.rank_guard import GuardAddress

pytestmark = pytest.mark.timeout(60)
HERE = Path(__file__).parent
GUARDED = """
import ctypes, json, sys
from tenfold.launchers import World
from tenfold.machine.rank_guard import RankGuard
world = World(rank=1, size=2, local_rank=0, local_size=1, launcher="torchrun")
guard = RankGuard(world, "test_rank_guard:report", stopped_seconds=0.2, kill_seconds=0.2)
address = guard.address
print(json.dumps([guard._process.pid, address.addresses + ("127.0.0.1",), address.port, address.token]), flush=True)
if sys.argv[1] != "before":
    guard.note_meeting()
if sys.argv[1] == "stalled":
    guard.watch_progress(0.2).mark()
if sys.argv[1] in ("busy", "stalled"):
    ctypes.PyDLL(None).sleep(60)
input()
"""


def report(_: World, lost: WorkerLost) -> None:
    """Do in the guard what would tell other ranks."""
    Path("reported").write_text(str(lost.rank))


@contextmanager
def guarded(what: str, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", int, GuardAddress]]:
    """Start a rank that does something; yield it, its guard's process, and where the guard answers."""
    path = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE), str(HERE.parent / "support")])
    with subprocess.Popen(
        [sys.executable, "-c", GUARDED, what],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as rank:
        try:
            assert rank.stdout is not None
            pid, addresses, port, token = json.loads(rank.stdout.readline())
            yield rank, pid, GuardAddress(tuple(addresses), port, token)
        finally:
            rank.kill()


def test_a_rank_that_is_alone_on_its_host_is_reported_when_it_is_stopped(tmp_path: Path) -> None:
    with guarded("before", tmp_path) as (rank, _, _):
        os.kill(rank.pid, signal.SIGSTOP)
        error = rank.communicate(timeout=50)[1]
    assert error.startswith(f"[rank 1] error: worker 1 (process {rank.pid} on ")
    assert rank.returncode == -signal.SIGKILL
    assert (tmp_path / "reported").read_text() == "1"


def test_it_tells_a_busy_rank_from_one_that_is_stopped_or_gone(tmp_path: Path) -> None:
    with guarded("busy", tmp_path) as (rank, guard, address):
        wait_until(address.answers)
        assert not GuardAddress(address.addresses, address.port, "another").answers()
        os.kill(rank.pid, signal.SIGSTOP)
        wait_until(lambda: not address.answers())
        rank.communicate(timeout=50)  # launchers wait for a stopped rank, so the guard kills it
        assert rank.returncode == -signal.SIGKILL
        wait_until(lambda: not is_alive(guard))
        assert not address.answers()


def test_it_ends_a_rank_without_progress_whose_own_threads_cannot_run(tmp_path: Path) -> None:
    with guarded("stalled", tmp_path) as (rank, _, _):
        error = rank.communicate(timeout=50)[1]
    assert rank.returncode == -signal.SIGKILL
    assert "worker 1" in error
    assert "no progress" in error


def test_it_ends_with_its_rank(tmp_path: Path) -> None:
    with guarded("idle", tmp_path) as (rank, guard, _):
        assert is_alive(guard)
        rank.communicate("\n", timeout=50)
        assert rank.returncode == 0
        wait_until(lambda: not is_alive(guard))
