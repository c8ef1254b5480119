"""Law 7: nobody waits for the dead. Workers raise, leave, are killed or stopped; so is whoever started them."""

import gc
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_models import LAWFUL, Unpicklable, numbered, same, train
from forked import run_command, start_program
from waiting import wait_until

import tenfold
from tenfold.errors import ModelError, UserCodeError, WorkerLost
from tenfold.machine.liveness import LOOK_SECONDS, is_alive
from tenfold.runs.events import Event, Metric
from tenfold.workers import pool as crew

pytestmark = pytest.mark.timeout(60)
SOURCES = os.pathsep.join([str(Path(tenfold.__file__).parents[1]), str(Path(__file__).parents[1] / "support")])
NUMBERED: dict[str, Any] = {
    "model": "engine_models:Failing",
    "data": {"train": numbered(48), "test": numbered(6)},
    "shards": "contiguous",
    "workers": 3,
    "batch_size": 4,
    "epochs": 3,
    "lr": 0.01,
}
"""Worker 0 has the samples 0 to 15, worker 1 those to 31, worker 2 those to 47."""


def workers() -> list[int]:
    """Process ids of the workers that live now, oldest first."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    children = psutil.Process(server).children() if server else []
    return [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE]


def descriptors() -> int:
    gc.collect()
    return psutil.Process().num_fds()


@pytest.fixture(scope="module", autouse=True)
def _everything_was_used_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the process open what it keeps for good, such as the server and multiprocessing's own heap."""
    train(**NUMBERED | {"epochs": 1, "lr": 1e-6}, model_options={"number": -1}, runs=tmp_path_factory.mktemp("first"))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = descriptors()
    yield
    wait_until(lambda: not workers())
    assert descriptors() <= before
    assert not list(Path(tempfile.gettempdir()).glob(f"tenfold-{os.getpid()}-*"))


class Strike:
    """A listener that sends a signal to one worker in the second epoch."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank, self.number = rank, number
        self.victim = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Metric) and event.epoch == 1 and not self.victim:
            self.victim = workers()[self.rank]
            os.kill(self.victim, self.number)


class TestAWorkerThatRaises:
    def test_its_traceback_and_its_rank_are_told(self) -> None:
        with pytest.raises(UserCodeError) as failed:
            train(**NUMBERED, model_options={"number": 35, "epoch": 1})
        message = str(failed.value)
        assert message.startswith('worker 2: ZeroDivisionError: the model gave up\n  File "')
        assert "engine_models.py" in message
        assert "tenfold/workers" not in message
        assert tenfold.open_run().status == "failed"
        assert "the model gave up" in tenfold.open_run().error

    def test_in_the_first_step_it_is_a_sentence_about_the_model(self) -> None:
        with pytest.raises(
            ModelError, match=r"worker 1: model .*Failing failed on its first batch, .*the model gave up"
        ):
            train(**NUMBERED | {"batch_size": 16}, model_options={"number": 20})

    def test_that_wants_to_exit(self) -> None:
        with pytest.raises(UserCodeError, match=r"(?s)worker 1: SystemExit: the model left"):
            train(**NUMBERED, model_options={"number": 20, "epoch": 1, "how": "sys.exit"})

    def test_while_it_unpacks_the_model(self) -> None:
        with pytest.raises(Exception, match=r"(?s)worker \d.*no module named 'far_away'"):
            train(**NUMBERED | {"model": Unpicklable()})

    def test_while_it_imports_the_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "only_here.py").write_text(
            "import multiprocessing\nfrom torch import nn\n"
            "assert multiprocessing.parent_process() is None, 'not in a worker'\n"
            "def network(): return nn.Linear(3, 2)\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(Exception, match=r"(?s)worker \d.*not in a worker"):
            train(**NUMBERED | {"model": "only_here:network"})


class TestAWorkerThatIsLost:
    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory: pytest.TempPathFactory) -> tenfold.Run:
        return train(**LAWFUL, workers=3, runs=tmp_path_factory.mktemp("whole"))

    @pytest.mark.parametrize("rank", [0, 2])
    def test_killed(self, whole: tenfold.Run, rank: int) -> None:
        strike = Strike(rank, signal.SIGKILL)
        with pytest.raises(WorkerLost, match=f"worker {rank} .* was killed by SIGKILL") as lost:
            train(**LAWFUL, workers=3, listen=strike)
        self.assert_named(lost.value, strike)
        self.assert_resumes_to(whole)

    def test_stopped(self, whole: tenfold.Run) -> None:
        strike = Strike(1, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match=r"worker 1 .* was stopped") as lost:
            train(**LAWFUL, workers=3, listen=strike)
        self.assert_named(lost.value, strike)
        self.assert_resumes_to(whole)

    @pytest.mark.parametrize("strategy", ["allreduce", "none"])
    def test_waiting_for_a_lock_that_is_never_released(self, strategy: str) -> None:
        options = {"number": 20, "epoch": 1, "how": "lock"}
        fields = NUMBERED | {"epochs": 2, "strategy": strategy, "stall_after": 3, "model_options": options}
        with pytest.raises(WorkerLost, match=r"worker 1 .* no progress") as lost:
            train(**fields)
        assert lost.value.rank == 1
        assert "machine.stall_after (3)" in str(lost.value)
        assert tenfold.open_run().status == "interrupted"
        assert tenfold.resume(data=NUMBERED["data"]).status == "finished"

    def test_together_with_all_others(self) -> None:
        with pytest.raises(WorkerLost, match=r"worker 0 .* worker 1, worker 2"):
            train(**NUMBERED | {"model": "engine_models:Blocking"}, model_options={"steps": 2}, stall_after=3)
        assert tenfold.open_run().status == "interrupted"

    @pytest.mark.parametrize("strategy", ["none", "easgd", "ad-psgd"])
    def test_when_no_other_waits_for_it(self, strategy: str) -> None:
        with pytest.raises(WorkerLost, match=r"worker 1 .* was killed by SIGKILL"):
            train(**LAWFUL, workers=2, strategy=strategy, listen=Strike(1, signal.SIGKILL))

    def test_when_it_is_the_only_one(self) -> None:
        with pytest.raises(WorkerLost, match=r"worker 0 .* was killed by SIGTERM"):
            train(**LAWFUL, engine="processes", workers=1, listen=Strike(0, signal.SIGTERM))

    def test_when_it_leaves_without_a_word(self) -> None:
        with pytest.raises(WorkerLost, match=r"worker 2 .* ended with code 7"):
            train(**NUMBERED, model_options={"number": 40, "epoch": 1, "how": "exit"})

    def test_while_the_supervisor_is_busy_the_lost_one_is_still_named(self) -> None:
        """The others notice and complain; what they say must not hide who is lost."""
        strike = Strike(2, signal.SIGKILL)

        def busy(event: Event) -> None:
            was = strike.victim
            strike(event)
            if strike.victim and not was:
                time.sleep(1.0)

        with pytest.raises(WorkerLost, match=r"worker 2 .* was killed by SIGKILL"):
            train(**LAWFUL, workers=3, listen=busy)

    def assert_named(self, lost: WorkerLost, strike: Strike) -> None:
        assert lost.rank == strike.rank
        assert f"process {strike.victim}" in str(lost)

    def assert_resumes_to(self, whole: tenfold.Run) -> None:
        assert tenfold.open_run().status == "interrupted"
        assert tenfold.open_run().history, "what was recorded is lost"
        resumed = tenfold.resume()
        assert resumed.status == "finished"
        assert same(resumed.model.state_dict(), whole.model.state_dict())
        assert resumed.metrics == whole.metrics


def test_a_stop_is_noticed_within_six_seconds() -> None:
    assert crew.STOPPED_SECONDS + 2 * LOOK_SECONDS + crew.WAIT_SECONDS <= 6


def the_board_of(pid: int) -> psutil.Process:
    (board,) = [child for child in psutil.Process(pid).children() if "board" in child.cmdline()]
    return board


def test_workers_and_the_board_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    endless = {"model": "engine_models:slow_network", "model_options": {"folder": str(seen)}, "data": "digits"}
    endless |= {"workers": 2, "epochs": 1_000_000, "threads": 1, "oversubscribe": True}
    tenfold.Experiment(**endless).save(tmp_path / "endless.toml")
    board = ("train", "endless.toml", "--board", "--runs", "runs")
    parent = start_program(partial(run_command, BROWSER="true"), str(tmp_path), *board)
    wait_until(lambda: len(list(seen.iterdir())) == 3)
    pids = [int(path.name) for path in seen.iterdir()]
    assert parent.pid in pids
    pids.append(the_board_of(parent.pid).pid)
    parent.kill()
    parent.join(30)
    parent.close()
    wait_until(lambda: not any(map(is_alive, pids)))
    assert tenfold.open_run(runs=tmp_path / "runs").status == "interrupted"


def test_a_signal_ends_everything_and_the_run_can_go_on() -> None:
    """Even the board, which has a session of its own."""
    arguments = "train --model mlp --data digits --epochs 1000000 --workers 2 --set oversubscribe=true --board"
    command = subprocess.Popen(
        [sys.executable, "-m", "tenfold", *arguments.split()],
        env=os.environ | {"PYTHONPATH": SOURCES, "BROWSER": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert command.stderr is not None
        read = ""
        while "epoch 3/" not in read:
            read = command.stderr.readline()
            assert read, "it ended by itself"
        board = the_board_of(command.pid)
        assert len(of_session(command.pid)) >= 3
        os.killpg(command.pid, signal.SIGTERM)
        _, rest = command.communicate(timeout=30)
        assert command.returncode == 143
        assert "Traceback" not in rest
        assert "`tenfold resume 1`" in rest.strip().splitlines()[-1]
        wait_until(lambda: not of_session(command.pid) and not is_alive(board.pid))
    finally:
        command.kill()
        command.communicate()
    run = tenfold.open_run()
    assert run.status == "interrupted"
    before = len(run.history)

    def stop(event: Event) -> None:
        if isinstance(event, Metric) and event.epoch >= before + 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.resume(run, listen=stop)
    assert [row["epoch"] for row in tenfold.open_run().history][: before + 2] == list(range(1, before + 3))


def of_session(leader: int) -> list[int]:
    """Process ids of a session's living members."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found
