"""Who works on a run is known by a lock that dies with the process, and by a lease where locks prove nothing."""

import errno
import fcntl
import multiprocessing
import os
import time

import pytest
import store_processes
from forked import start_forked
from made_store import new_run
from waiting import wait_until

from tenfold.errors import RunTakenOver
from tenfold.runs import Recorder, Store, checkpoint, claim
from tenfold.runs.claim import LOCK, Claim, is_claimed
from tenfold.runs.events import EpochEnded


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(claim, "TOUCH_SECONDS", 0.05)
    monkeypatch.setattr(claim, "WATCH_SECONDS", 0.6)
    monkeypatch.setattr(claim, "RETRY_SECONDS", 0.1)


def test_a_run_is_claimed_once_and_released(tmp_path, quick):
    held = Claim.take(tmp_path)
    assert is_claimed(tmp_path)
    assert Claim.take(tmp_path) is None
    held.release()
    assert not is_claimed(tmp_path)
    assert list(tmp_path.iterdir()) == []
    again = Claim.take(tmp_path)
    held.release()
    assert is_claimed(tmp_path), "one that is released twice takes nothing from its successor"
    again.release()


@pytest.mark.timeout(60)
def test_the_claim_of_a_killed_process_is_gone_whatever_the_clock_says(tmp_path, quick):
    here, there = multiprocessing.Pipe()
    holder = start_forked(store_processes.hold_claim, tmp_path, there)
    assert here.recv()
    os.utime(tmp_path / LOCK, (1.0, 1.0))
    assert is_claimed(tmp_path), "it lives, though its file looks old"
    assert Claim.take(tmp_path) is None
    holder.kill()
    holder.join()
    os.utime(tmp_path / LOCK, (4e9, 4e9))
    assert not is_claimed(tmp_path), "it is dead, though its file is of the future"
    held = Claim.take(tmp_path)
    assert held is not None
    held.release()


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


def on_another_machine(monkeypatch):
    monkeypatch.setattr(claim, "_kernel", lambda: "another")


@pytest.mark.parametrize("locks", ["none", "local"])
def test_where_locks_do_not_reach_a_live_holder_is_known_by_its_lease(tmp_path, quick, monkeypatch, locks):
    """As on a shared file system that keeps locks to each machine, or has none."""
    held = Claim.take(tmp_path)
    if locks == "none":
        monkeypatch.setattr(fcntl, "flock", no_locks)
    else:
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
        on_another_machine(monkeypatch)
    assert is_claimed(tmp_path)
    assert Claim.take(tmp_path) is None
    held._close()  # as if its process had died
    taken = Claim.take(tmp_path)
    assert taken is not None
    taken.release()


def test_a_dead_holder_on_another_machine_is_shown_as_such_after_a_while(tmp_path, quick, monkeypatch):
    Claim.take(tmp_path)._close()
    on_another_machine(monkeypatch)
    assert is_claimed(tmp_path), "its last sign is fresh"
    os.utime(tmp_path / LOCK, (time.time() - 60, time.time() - 60))
    assert not is_claimed(tmp_path)


def test_force_takes_a_claim_from_a_live_holder(tmp_path, quick):
    held = Claim.take(tmp_path)
    taken = Claim.take(tmp_path, force=True)
    assert taken is not None
    held.release()
    assert is_claimed(tmp_path), "the claim is the new holder's"
    taken.release()


def test_who_has_lost_a_run_to_another_process_writes_no_more(tmp_path, quick):
    store, number = new_run(tmp_path / "runs")
    recorder = Recorder(store, number)
    recorder(EpochEnded(at=1.0, epoch=0))
    recorder.flush()
    folder = store.path(number, store.find(number)["title"])
    other = start_forked(store_processes.take_over, tmp_path / "runs", number)
    other.join()
    assert other.exitcode == 0
    with pytest.raises(RunTakenOver, match="another process"):
        store.append(number, [EpochEnded(at=2.0, epoch=1)])
    with pytest.raises(RunTakenOver):
        recorder.close(result={}, status="finished")
    with pytest.raises(RunTakenOver):
        checkpoint.commit(folder / "checkpoint", {"epoch": 1, "workers": 1})
    recorder.abandon()
    assert not (folder / "checkpoint").exists()
    assert store.find(number)["status"] != "finished"
    assert [event.epoch for event in store.events(number)] == [0]


def test_a_store_that_was_renamed_is_not_called_taken_over(tmp_path, quick):
    store, number = new_run(tmp_path / "runs")
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    with pytest.raises(RunTakenOver, match="elsewhere") as lost:
        store.append(number, [EpochEnded(at=2.0, epoch=1)])
    assert "another process" not in str(lost.value)
    store.release(number)
    Store(tmp_path / "elsewhere").claim(number)


def _sleep():
    time.sleep(30)


@pytest.mark.timeout(60)
def test_a_forked_process_does_not_keep_its_parents_claim(tmp_path, quick):
    held = Claim.take(tmp_path)
    child = multiprocessing.get_context("fork").Process(target=_sleep, daemon=True)
    child.start()
    held._close()
    wait_until(lambda: not is_claimed(tmp_path))  # the child closes its copy when it gets its turn
    child.kill()
    child.join()


def test_many_may_ask_at_once(tmp_path, quick):
    Claim.take(tmp_path)._close()
    descriptor = os.open(tmp_path / LOCK, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    assert not is_claimed(tmp_path)
    os.close(descriptor)


def test_a_folder_without_a_claim(tmp_path):
    assert not is_claimed(tmp_path / "none")
