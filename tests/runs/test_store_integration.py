import json
import os
import signal
import subprocess
import sys

import pytest
from made_store import DIGITS, new_run

from tenfold.runs import Metric, Store

WRITE = """
import sys
from tenfold.experiment import Experiment
from tenfold.runs import Metric, Store
folder, who, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.stdin.readline()
store = Store(folder)
run = store.create(Experiment(model="mlp", data="digits"), kind="train", facts={"who": who})
for step in range(count):
    store.append(run, [Metric(at=step, name="m", value=who, part="train", step=step, epoch=0, seconds=0)] * 5)
store.update(run, result={"count": count}, status="finished")
print(run)
"""
HOLD = """
import sys, time
from tenfold.experiment import Experiment
from tenfold.runs import EpochEnded, Store
store = Store(sys.argv[1])
run = store.create(Experiment(model="mlp", data="digits"), kind="train", facts={})
store.append(run, [EpochEnded(at=1.0)])
print(run, flush=True)
at = 1.0
while True:
    at += 1
    store.append(run, [EpochEnded(at=at)])
"""


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.timeout(120)
def test_writers_from_several_processes_lose_nothing(tmp_path):
    """They start on a store that none of them has made yet."""
    writers = [start(WRITE, tmp_path / "runs", who, 20) for who in range(4)]
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    outputs = [writer.communicate(timeout=90)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0]
    numbers = [int(output) for output in outputs]
    assert sorted(numbers) == [1, 2, 3, 4]
    store = Store(tmp_path / "runs", create=False)
    for who, number in enumerate(numbers):
        record = store.find(number)
        assert (record["facts"], record["status"]) == ({"who": who}, "finished")
        events = list(store.events(number))
        assert [event.step for event in events] == [step for step in range(20) for _ in range(5)]
        assert all(isinstance(event, Metric) and event.value == who for event in events)


@pytest.mark.timeout(60)
def test_a_killed_writer_leaves_a_store_that_can_be_read_and_written(tmp_path):
    holder = start(HOLD, tmp_path)
    number = int(holder.stdout.readline())
    store = Store(tmp_path, create=False)
    assert store.find(number)["status"] == "running"
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    assert store.find(number)["status"] == "interrupted"
    times = [event.at for event in store.events(number)]
    assert times == [float(at) for at in range(1, len(times) + 1)]
    assert json.dumps(store.find("last")["experiment"])
    assert store.create(DIGITS, kind="train", facts={}) == number + 1
    assert store.claim_and_restart(number, epoch=0) == times[-1]


@pytest.mark.timeout(60)
def test_a_run_is_still_running_for_other_processes(tmp_path):
    _, number = new_run(tmp_path)
    code = "import sys; from tenfold.runs import Store; Store(sys.argv[1]).claim_and_restart(int(sys.argv[2]), epoch=0)"
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path, str(number)], capture_output=True, text=True, timeout=50
    )
    assert ran.returncode != 0
    assert f"run {number} is still running, in process {os.getpid()}" in ran.stderr
