"""Workers that divide the orthogonalization end with the very weights of workers that all do the whole of it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engine_models import same, train
from hypothesis import given
from hypothesis import strategies as st
from threaded import Threads, make_task
from torch import nn

from tenfold.training.muon import Muon, as_matrices
from tenfold.workers import rounds as shared_orthogonalization
from tenfold.workers.rounds import (
    assign_matrices,
    large_stacks,
    largest_share,
    parallel_pays,
    stacks_worth_sharing,
)

FIELDS: dict[str, Any] = {"data": "digits", "limit": 120, "epochs": 1, "batch_size": 20, "workers": 2}
GRADIENTS = {"optimizer": "muon", "average": "gradients", "weight_decay": 0.01, "clip": 1.0}
WIDE = FIELDS | GRADIENTS | {"model": "mlp", "hidden": [512, 512]}
SMALL = FIELDS | GRADIENTS | {"model": "lenet5", "data": "digits", "ema": 0.9}

sizes = st.integers(2, 150)
shapes = st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Any:
    def choose(divided: bool) -> None:
        monkeypatch.setattr(
            shared_orthogonalization, "stacks_worth_sharing", lambda optimizer, _: divided and large_stacks(optimizer)
        )

    return choose


def divides(**fields: Any) -> bool:
    threads = Threads(make_task(**fields))
    threads._shared.close()
    return getattr(threads.workers[0].trainer, "shared_orthogonalization", None) is not None


@given(shapes, st.integers(1, 7), st.sampled_from([8, 64]), st.integers(0, 99))
def test_parts_of_a_step_have_the_bits_of_the_whole(
    shapes: list[tuple[int, int]], workers: int, block: int, seed: int
) -> None:
    torch.manual_seed(seed)
    start, gradients = [torch.randn(shape) for shape in shapes], [torch.randn(shape) for shape in shapes]

    def stepped(rank: int | None) -> Muon:
        parameters = [nn.Parameter(item.clone()) for item in start]
        optimizer = Muon(parameters, block=block, weight_decay=0.1)
        stacks = large_stacks(optimizer)
        if rank is not None and stacks:
            optimizer.own = dict(zip(stacks, assign_matrices([*stacks.values()], workers)[rank], strict=True))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        return optimizer

    whole = large_stacks(stepped(None))
    parts = [stepped(rank) for rank in range(workers)]
    for place, (parameter, shape) in enumerate(whole.items()):
        pieces = []
        for optimizer in parts:
            mine = list(large_stacks(optimizer))[place]
            pieces.append(as_matrices(mine.detach(), shape)[optimizer.own[mine]])
        assert torch.equal(torch.cat(pieces), as_matrices(parameter.detach(), shape))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(33, 80), st.integers(33, 800)), min_size=1), st.integers(1, 9))
def test_every_matrix_has_one_owner(stacks: list[tuple[int, int, int]], workers: int) -> None:
    divided = assign_matrices(stacks, workers)
    for place, (count, *_) in enumerate(stacks):
        owned = [number for parts in divided for number in range(count)[parts[place]]]
        assert owned == list(range(count))
    assert 1 / workers - 1e-9 <= largest_share(stacks, workers) <= 1


def test_it_pays_for_wide_networks_only() -> None:
    wide, lenet5 = [(8, 64, 784), (8, 64, 512)], [(2, 60, 400), (1, 84, 120)]
    assert parallel_pays(wide, 2)
    assert parallel_pays(wide, 16)
    assert not parallel_pays(wide, 1)
    assert not parallel_pays(lenet5, 2)
    assert not parallel_pays(lenet5, 16)
    assert not parallel_pays([], 2)
    assert not parallel_pays([(2, 64, 9216)], 16), "two workers would write a lot into fourteen others"


@pytest.mark.parametrize("workers", [2, 3])
def test_training_gives_the_same_bits(choose: Any, workers: int) -> None:
    found = []
    for divided in (True, False):
        choose(divided)
        threads = Threads(make_task(**SMALL | {"workers": workers})).train()
        assert (threads.workers[0].trainer.shared_orthogonalization is not None) == divided  # type: ignore[attr-defined]
        states = [worker.replica.network.state_dict() for worker in threads.workers]
        assert all(same(states[0], state) for state in states)
        found.append(threads.weights)
    assert same(*found)


def test_it_does_not_pay_with_convolutions() -> None:
    layers = nn.Linear(512, 512), nn.Conv2d(1, 4, 3)
    assert stacks_worth_sharing(Muon(layers[0]), 2)
    assert not stacks_worth_sharing(Muon(nn.Sequential(*layers)), 2)


@pytest.mark.timeout(90)
@pytest.mark.usefixtures("_in_a_folder_of_its_own")
def test_processes_divide_the_steps_of_a_wide_network(choose: Any) -> None:
    assert divides(**WIDE)
    choose(divided=False)
    whole = Threads(make_task(**WIDE)).train()
    assert same(train(**WIDE, engine="processes").model.state_dict(), whole.weights)


@pytest.mark.parametrize(
    "fields", [{"optimizer": "sgd"}, {"average": "weights"}, {"strategy": "ring", "workers": 4}], ids=str
)
def test_others_take_whole_steps(choose: Any, fields: dict[str, Any]) -> None:
    choose(divided=True)
    assert not divides(**WIDE | fields)
