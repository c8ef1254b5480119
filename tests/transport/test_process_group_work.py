"""Operations of a process group are carried on by the threads that begin them and wait for them, and by its own."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tenfold.transport import process_group_work
from tenfold.transport.process_group_work import GroupWork, Progress


class NobodyIsLost:
    def check(self, work: GroupWork, is_late: bool, can_go_on: Callable[[], bool]) -> None:
        assert not is_late

    def explain(self, error: BaseException) -> BaseException:
        return error


@contextmanager
def progress(*, crowded: bool = True) -> Iterator[Progress]:
    made = Progress(NobodyIsLost(), lambda: None, crowded=crowded)
    try:
        yield made
    finally:
        made.close()


def operation(owner: Progress, ready: Callable[[], bool], tensor: torch.Tensor, then: Any = None) -> GroupWork:
    def steps() -> Iterator[Any]:
        yield ready
        tensor.add_(1)
        if then is not None:
            then()

    return GroupWork(owner, "all_reduce", steps(), [tensor], timeout=30)


def test_a_callback_that_begins_an_operation_loses_none():
    with progress() as owner:
        first_may, second_may, done = threading.Event(), threading.Event(), []
        tensors = list(torch.zeros(3))

        def begin_another(_: Any) -> None:
            done.append(owner.begin(operation(owner, lambda: True, tensors[2])))

        first = owner.begin(operation(owner, first_may.is_set, tensors[0]))
        first.get_future().then(begin_another)
        second = owner.begin(operation(owner, second_may.is_set, tensors[1]))
        first_may.set()
        first.wait()
        second_may.set()
        second.wait()
        done[0].wait()
        assert torch.stack(tensors).tolist() == [1, 1, 1]


def test_threads_that_begin_and_wait_at_the_same_time_share_one_that_serves():
    with progress() as owner:
        tensor, order = torch.zeros(()), iter(range(10_000))
        failed: list[BaseException] = []

        def work() -> None:
            try:
                for number in range(40):
                    until = time.perf_counter() + 0.0007 * (number % 3)
                    begun = owner.begin(operation(owner, lambda until=until: time.perf_counter() > until, tensor))
                    next(order)
                    begun.wait()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        serving = 0
        while any(thread.is_alive() for thread in threads):
            serving = max(serving, sum(thread.name == "tenfold-process-group" for thread in threading.enumerate()))
            time.sleep(0.001)
        assert not failed
        assert tensor.item() == next(order) == 160
        assert serving <= 1


@pytest.mark.parametrize("computes", [False, True])
def test_who_has_nothing_else_to_do_carries_the_next_such_operation_to_its_end(
    monkeypatch: pytest.MonkeyPatch, computes: bool
) -> None:
    monkeypatch.setattr(process_group_work, "IDLE_LINGER_SECONDS", 20.0)
    monkeypatch.setattr(process_group_work, "BUSY_SECONDS", math.inf)
    if computes:  # on a busy machine it gets a small share of a core
        monkeypatch.setattr(process_group_work, "IDLE_SHARE", 1e-4)
    with progress(crowded=False) as owner:
        tensor, ended_at_once = torch.zeros(()), []
        for _ in range(2):
            may = threading.Event()
            timer = threading.Timer(0.1, may.set)
            timer.start()
            begun = owner.begin(operation(owner, may.is_set, tensor))
            ended_at_once.append(begun.done)
            while computes and not begun.done:
                torch.ones(1000).sum()
            torch.futures.collect_all([begun.get_future()]).wait()  # in C++, as DDP does
            timer.join()
        assert ended_at_once == [False, not computes]
