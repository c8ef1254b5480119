"""Processes that are started, watched and ended together, in every way that they can fail."""

import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import crew_targets
import psutil
import pytest
from waiting import wait_until

from tenfold.errors import MachineError, WorkerLost
from tenfold.machine import cores
from tenfold.machine.liveness import is_alive
from tenfold.workers import pool as crew
from tenfold.workers.fork_server import start_process
from tenfold.workers.pool import WorkerPool

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("_warm_server")]
Start = Callable[..., WorkerPool]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[WorkerPool] = []

    def make(size: int, target: Callable[..., None], *arguments: Any, **options: Any) -> WorkerPool:
        started.append(WorkerPool(size, target, arguments, **options))
        return started[-1]

    yield make
    for item in started:
        item.end()


def pids(of: WorkerPool) -> list[int]:
    return [process.pid for process in of.processes]


def gone(numbers: list[int], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(psutil.pid_exists, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(psutil.pid_exists, numbers))


def test_messages_go_both_ways_and_carry_their_rank(start: Start) -> None:
    three = start(3, crew_targets.echo, "hello")
    messages = three.messages()
    assert dict(next(messages) for _ in range(3)) == {rank: f"hello from {rank}" for rank in range(3)}
    three.send(1, {"question": [1, 2]})
    assert next(messages) == (1, {"question": [1, 2]})
    for rank in range(3):
        three.send(rank, "enough")
    numbers = pids(three)
    three.join()
    assert gone(numbers)


def test_long_messages_arrive_whole(start: Start) -> None:
    messages = start(2, crew_targets.talk_much, 3_000_000).messages()
    heard = [next(messages) for _ in range(4)]
    for rank in range(2):
        assert [message for sender, message in heard if sender == rank] == [b"x" * 3_000_000, "done"]


@pytest.mark.parametrize(("leaver", "code"), [(0, 3), (1, 0)])
def test_last_words_come_before_the_loss_and_complaints_not_at_all(start: Start, leaver: int, code: int) -> None:
    two = start(2, crew_targets.leave, leaver, code)
    number = pids(two)[leaver]
    time.sleep(0.6)  # both have spoken before anybody listens
    messages = two.messages()
    assert next(messages) == (leaver, "last words")
    with pytest.raises(WorkerLost) as lost:
        next(messages)
    assert lost.value.rank == leaver
    assert str(lost.value) == f"worker {leaver} (process {number}) ended with code {code}"


def test_a_workers_own_error_comes_before_what_others_say_of_its_loss(start: Start) -> None:
    two = start(2, crew_targets.complain)
    wait_until(lambda: all(connection.poll() for connection in two.connections))
    messages = two.messages()
    assert [(index, type(message)) for index, message in (next(messages), next(messages))] == [
        (1, ValueError),
        (0, WorkerLost),
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_worker_is_named_with_the_signal(start: Start, number: signal.Signals) -> None:
    lost = lose(start(3, crew_targets.strike, 1, number))
    assert lost.rank == 1
    assert str(lost).endswith(f"was killed by {number.name}")


@pytest.mark.parametrize(("number", "hint"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_a_worker_killed_for_lack_of_memory_is_named_with_the_reason(
    start: Start, number: signal.Signals, hint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = itertools.count()
    monkeypatch.setattr(cores, "count_out_of_memory_kills", lambda: next(kills))
    lost = lose(start(3, crew_targets.strike, 1, number))
    assert ("memory" in str(lost)) == hint


def test_a_stopped_worker_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "STOPPED_SECONDS", 1.5)
    three = start(3, crew_targets.strike, 2, signal.SIGSTOP)
    numbers = pids(three)
    lost = lose(three)
    assert lost.rank == 2
    assert "was stopped" in str(lost)
    three.end()
    assert gone(numbers), "a stopped process must be killed, since it cannot end"


def test_a_worker_stopped_as_soon_as_it_has_started_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "STOPPED_SECONDS", 1.5)
    two = start(2, crew_targets.stop_at_once)
    with pytest.raises(WorkerLost, match=r"worker 1 .* stopped") as lost:
        next(two.messages())
    assert lost.value.rank == 1


def test_a_worker_that_never_starts_to_work_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "STARTUP_SECONDS", 2)
    two = start(2, crew_targets.never_start)
    with pytest.raises(WorkerLost, match="worker 1") as lost:
        next(two.messages())
    assert lost.value.rank == 1


def test_a_worker_stopped_in_mid_message_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "STOPPED_SECONDS", 1.5)
    two = start(2, crew_targets.stop_in_mid_message, 100_000)
    with pytest.raises(WorkerLost, match=r"worker 1 .* stopped") as lost:
        next(two.messages())
    assert lost.value.rank == 1


@pytest.mark.parametrize("waiting", [True, False])
def test_a_worker_that_lives_but_makes_no_progress_is_named(start: Start, *, waiting: bool) -> None:
    three = start(3, crew_targets.get_stuck, [1], waiting, stall_after=2)
    with pytest.raises(WorkerLost, match="no progress") as lost:
        next(three.messages())
    assert lost.value.rank == 1
    assert "stall_after" in str(lost.value)


def test_all_workers_that_make_no_progress_are_named(start: Start) -> None:
    three = start(3, crew_targets.get_stuck, [0, 1, 2], True, stall_after=2)
    with pytest.raises(WorkerLost, match=r"worker 0 .* worker 1, worker 2"):
        next(three.messages())


def lose(three: WorkerPool) -> WorkerLost:
    messages = three.messages()
    for _ in range(3):
        assert next(messages)[1] == "here"
    for rank in range(3):
        three.send(rank, "now")
    with pytest.raises(WorkerLost) as lost:
        next(messages)
    return lost.value


def test_a_worker_whose_threads_cannot_run_is_not_a_lost_one(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call into C that keeps Python's lock takes longer than a worker may be stopped."""
    monkeypatch.setattr(crew, "STOPPED_SECONDS", 1.0)
    messages = start(1, crew_targets.keep_the_interpreter, 3).messages()
    assert next(messages) == (0, "done")


def test_a_family_that_was_paused_continues_piece_by_piece(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "STOPPED_SECONDS", 1.5)
    two = start(2, crew_targets.talk_now_and_then)
    messages = two.messages()
    while {next(messages)[0], next(messages)[0]} != {0, 1}:
        pass
    for pid in pids(two):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)  # this process is paused, too
    os.kill(pids(two)[0], signal.SIGCONT)
    later = threading.Timer(0.8, os.kill, (pids(two)[1], signal.SIGCONT))
    later.start()
    until = time.monotonic() + 3
    heard = [rank for rank, _ in itertools.takewhile(lambda _: time.monotonic() < until, messages)]
    later.join()
    assert set(heard[-10:]) == {0, 1}


def test_ctrl_c_is_left_to_the_parent(start: Start) -> None:
    messages = (three := start(3, crew_targets.strike, 0, signal.SIGINT)).messages()
    for _ in range(3):
        next(messages)
    three.send(0, "now")
    assert next(messages) == (0, "survived")


def test_who_does_not_end_is_killed(start: Start) -> None:
    two = start(2, crew_targets.stubborn)
    numbers, messages = pids(two), two.messages()
    assert [next(messages)[1] for _ in range(2)] == ["here", "here"]
    two.end()
    assert gone(numbers)


def test_ending_twice_or_sending_to_the_dead_is_harmless(start: Start) -> None:
    two = start(2, crew_targets.stubborn)
    os.kill(pids(two)[1], signal.SIGKILL)
    assert gone(pids(two)[1:])
    two.send(1, "are you there?")
    two.end()
    two.end()
    assert two.processes == []


def test_workers_end_with_their_lifeline(start: Start) -> None:
    """What happens when the parent is killed: its end of the pipe closes, and nothing else is needed."""
    two = start(2, crew_targets.stubborn)
    numbers, messages = pids(two), two.messages()
    for _ in range(2):
        next(messages)
    two._lifeline.close()
    assert gone(numbers)


def test_nothing_stays_open(start: Start) -> None:
    start(1, crew_targets.stubborn).end()
    gc.collect()
    before = psutil.Process().num_fds()
    for _ in range(3):
        start(2, crew_targets.stubborn).end()
    assert psutil.Process().num_fds() <= before


def test_another_takes_the_place_of_one_that_was_lost(start: Start) -> None:
    two = start(2, crew_targets.echo, "hello")
    messages = two.messages()
    assert dict(next(messages) for _ in range(2)).keys() == {0, 1}
    before = pids(two)
    os.kill(before[1], signal.SIGKILL)
    with pytest.raises(WorkerLost) as lost:
        next(messages)
    two.replace(lost.value.rank)
    messages = two.messages()
    assert next(messages) == (1, "hello from 1")
    two.send(0, "still here")
    assert next(messages) == (0, "still here")
    assert pids(two)[0] == before[0]
    assert pids(two)[1] != before[1]


def test_workers_outlive_the_server_that_they_were_forked_from(start: Start) -> None:
    two = start(2, crew_targets.echo, "hello")
    messages = two.messages()
    assert dict(next(messages) for _ in range(2)).keys() == {0, 1}
    server = psutil.Process(pids(two)[0]).parent()
    assert server is not None
    server.kill()
    wait_until(lambda: not is_alive(server.pid))
    two.send(0, "still here")
    assert next(messages) == (0, "still here")
    os.kill(pids(two)[1], signal.SIGKILL)
    with pytest.raises(WorkerLost, match="server") as lost:
        next(messages)
    assert lost.value.rank == 1
    two.replace(1)  # from another server
    assert next(two.messages()) == (1, "hello from 1")
    numbers = pids(two)
    two.end()
    assert gone(numbers)


def test_workers_end_while_their_server_is_stopped(start: Start) -> None:
    two = start(2, crew_targets.stubborn)
    messages, numbers = two.messages(), pids(two)
    assert [next(messages)[1] for _ in range(2)] == ["here", "here"]
    server = psutil.Process(numbers[0]).parent()
    assert server is not None
    processes = list(two.processes)
    server.suspend()
    try:
        two.end()
        assert not any(map(is_alive, numbers))
        for process in processes:
            with pytest.raises(ValueError, match="closed"):  # else Python would wait for it at exit
                process.join()
    finally:
        server.resume()


def test_an_interruption_while_processes_start_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    start_one = WorkerPool._start

    def interrupted(self: WorkerPool, rank: int) -> Any:
        connection, process = start_one(self, rank)
        begun.append(process.pid)
        os.kill(os.getpid(), signal.SIGINT)
        assert len(begun) == rank + 1
        return connection, process

    monkeypatch.setattr(WorkerPool, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        WorkerPool(2, crew_targets.echo, ("hello",))
    assert len(begun) == 2
    assert gone(begun)


class FromADyingServer:
    """A process that is forked from a server which dies so many times."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths

    def start(self) -> None:
        self.deaths -= 1
        if self.deaths >= 0:
            raise EOFError


def test_a_server_that_dies_while_it_forks_is_started_again() -> None:
    process = FromADyingServer(deaths=2)
    start_process(process)
    assert process.deaths == -1
    with pytest.raises(MachineError, match="killed repeatedly"):
        start_process(FromADyingServer(deaths=9))
