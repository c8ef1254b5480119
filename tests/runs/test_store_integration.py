"""Several processes write to one store."""

import json
import multiprocessing
import os

import pytest
import store_processes
from forked import start_forked
from fuse_folder import mounted_or_skipped
from made_store import DIGITS, new_run

from tenfold.runs import Store
from tenfold.runs.events import Metric
from tenfold.workers.fork_server import context


@pytest.fixture(params=["here", "on FUSE"])
def folder(request, tmp_path):
    """A folder of this machine, or one whose files cannot be mapped into memory."""
    if request.param == "here":
        yield tmp_path
        return
    for name in ("behind", "mounted"):
        (tmp_path / name).mkdir()
    with mounted_or_skipped(tmp_path / "behind", tmp_path / "mounted"):
        yield tmp_path / "mounted"


@pytest.mark.timeout(120)
def test_writers_from_several_processes_lose_nothing(folder):
    """They start on a store that none of them has made yet."""
    begin = context().Barrier(4)
    writers = [start_forked(store_processes.write_run, folder / "runs", who, 20, begin) for who in range(4)]
    for writer in writers:
        writer.join(90)
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    store = Store(folder / "runs", create=False)
    records = {record["id"]: record for record in store.records()}
    assert sorted(records) == [1, 2, 3, 4]
    assert sorted(record["metadata"]["who"] for record in records.values()) == [0, 1, 2, 3]
    for number, record in records.items():
        assert record["status"] == "finished"
        events = list(store.events(number))
        assert [event.step for event in events] == [step for step in range(20) for _ in range(5)]
        assert all(isinstance(event, Metric) and event.value == record["metadata"]["who"] for event in events)


@pytest.mark.timeout(60)
def test_a_killed_writer_leaves_a_store_that_can_be_read_and_written(tmp_path):
    here, there = multiprocessing.Pipe()
    writer = start_forked(store_processes.write_without_end, tmp_path, there)
    number = here.recv()
    store = Store(tmp_path, create=False)
    assert store.find(number)["status"] == "running"
    writer.kill()
    writer.join()
    assert store.find(number)["status"] == "interrupted"
    times = [event.at for event in store.events(number)]
    assert times == [float(at) for at in range(1, len(times) + 1)]
    assert json.dumps(store.find("last")["experiment"])
    assert store.create(DIGITS, kind="train", metadata={}) == number + 1
    assert store.claim_and_restart(number, epoch=0) == times[-1]


@pytest.mark.timeout(60)
def test_a_run_is_still_running_for_other_processes(tmp_path):
    _, number = new_run(tmp_path)
    here, there = multiprocessing.Pipe()
    other = start_forked(store_processes.restart, tmp_path, number, there)
    assert here.poll(50)
    assert f"run {number} is still running, in process {os.getpid()}" in here.recv()
    other.join()
