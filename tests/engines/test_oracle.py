"""Law 3, the oracle: averaging weights every step = averaging gradients = one process with the batch of all.

Every replica's batch is its whole shard, so that the batches of a step are together the whole training part. The judge
is a plain PyTorch loop over that part, which knows nothing of replicas.
"""

from typing import Any

import pytest
import torch
from engine_models import PLAIN
from threaded import Threads, make_task
from torch import Tensor, nn
from torch.nn import functional

from tenfold.workers.task import Task, make_network

SAMPLES, EPOCHS = 60, 5
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "plain": {"momentum": 0.0},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "decay": {"momentum": 0.5, "weight_decay": 0.1},
}


def images(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 3, (samples,), generator=generator)


def experiment(**fields: Any) -> dict[str, Any]:
    made = PLAIN | {
        "model": "mlp",
        "hidden": [12],
        "data": {"train": images(), "test": images(12)},
        "epochs": EPOCHS,
        "batch_size": SAMPLES,
        "lr": 0.2,
    }
    return made | fields


def one_process(task: Task, optimizer: dict[str, Any]) -> dict[str, Tensor]:
    network: nn.Module = make_network(task)
    descent = torch.optim.SGD(network.parameters(), lr=0.2, **optimizer)
    x, y = images()
    for _ in range(EPOCHS):
        descent.zero_grad()
        functional.cross_entropy(network(x), y).backward()
        descent.step()
    return dict(network.state_dict())


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], start: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert not torch.allclose(start[name], expected[name], rtol=1e-3), "the oracle itself has not moved"
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("average", ["weights", "gradients"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_dividing_changes_nothing(workers: int, average: str, optimizer: str) -> None:
    task = make_task(**experiment(workers=workers, average=average, **OPTIMIZERS[optimizer]))
    start = make_network(task).state_dict()
    found = Threads(task).train().weights
    assert_close(found, one_process(task, OPTIMIZERS[optimizer]), start)


@pytest.mark.parametrize("average", ["weights", "gradients"])
@pytest.mark.parametrize("strategy", ["parameter-server", "butterfly"])
def test_every_exact_strategy_is_the_same(average: str, strategy: str) -> None:
    task = make_task(**experiment(workers=2, average=average, strategy=strategy))
    found = Threads(task).train().weights
    assert_close(found, one_process(task, {"momentum": 0.9}), make_network(task).state_dict())


@pytest.mark.parametrize("average", ["weights", "gradients"])
def test_unequal_shards_are_weighted_by_their_samples(average: str) -> None:
    """Full batches of 36, 18 and 6 samples: their weighted mean is the gradient of all 60."""
    task = make_task(**experiment(workers=3, average=average, shards="fractions", fractions=[0.6, 0.3, 0.1]))
    assert sorted(len(shard) for shard in task.shards) == [6, 18, 36]
    found = Threads(task).train().weights
    assert_close(found, one_process(task, {"momentum": 0.9}), make_network(task).state_dict())


def test_gradients_of_short_last_batches_count_by_their_samples() -> None:
    """With shards of 36, 18 and 6 and batches of 10, step s sees what is left: the oracle takes exactly those."""
    from tenfold.data import batches, order

    fields = experiment(workers=3, average="gradients", shards="fractions", fractions=[0.6, 0.3, 0.1], batch_size=10)
    task = make_task(**fields | {"epochs": 2})
    network = make_network(task)
    descent = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)
    part = task.splits.train
    for epoch in range(2):
        visits = [batches(order(shard, 0, epoch, rank), 10) for rank, shard in enumerate(task.shards)]
        for step in range(task.steps_per_epoch):
            rows = torch.cat([visit[step] for visit in visits if step < len(visit)])
            (x, y), *_ = part.batches([rows])
            descent.zero_grad()
            functional.cross_entropy(network(x), y).backward()
            descent.step()
    found = Threads(task).train().weights
    assert_close(found, dict(network.state_dict()), make_network(task).state_dict())


def test_the_oracle_can_fail() -> None:
    """Rounds less often than every step are something else, and the comparison sees it."""
    task = make_task(**experiment(workers=2, sync_every=2, shards="contiguous"))
    found = Threads(task).train().weights
    expected = one_process(task, {"momentum": 0.9})
    assert any(not torch.allclose(found[name], expected[name], rtol=1e-5, atol=1e-6) for name in expected)
