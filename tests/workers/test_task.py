"""Law 1: every sample exactly once an epoch, over all replicas, however unequal their shards are."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiles import task_on_zeros
from torch import nn

from tenfold.data import Splits, Tensors, batches, order
from tenfold.data.splitting import SHARD_KINDS
from tenfold.engines import resolve
from tenfold.engines.prepare import prepare
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.workers.task import Resolved, Task, make_network


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    workers = draw(st.integers(1, 9))
    samples = draw(st.integers(workers, 120))
    kind = draw(st.sampled_from(sorted(SHARD_KINDS)))
    parts = draw(st.lists(st.floats(0.05, 1), min_size=workers, max_size=workers))
    fractions = [part / sum(parts) for part in parts] if kind == "fractions" and workers > 1 else None
    labels = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=samples, max_size=samples)))
    experiment = Experiment(
        model="mlp",
        hidden=[2],
        workers=workers,
        shards=kind if kind != "fractions" or fractions else "iid",
        fractions=fractions,
        skew=draw(st.sampled_from([0.05, 0.5, 50.0])),
        batch_size=draw(st.integers(1, 40)),
        seed=draw(st.integers(0, 99)),
        split_seed=draw(st.integers(0, 99)),
    )
    train = Tensors(torch.arange(samples, dtype=torch.float32)[:, None], labels)
    return Task.of(
        Resolved.of(experiment), Splits(name="made", train=train, shape=(1,), classes=5, outputs=5), threads=1
    )


def visits(task: Task, epoch: int, rank: int) -> list[torch.Tensor]:
    training = task.experiment.training
    return batches(order(task.shards[rank], training.seed, epoch, rank), training.batch_size)


@given(tasks(), st.integers(0, 3))
def test_an_epoch_visits_every_sample_exactly_once(task: Task, epoch: int) -> None:
    seen = Counter(
        int(number) for rank in range(task.workers) for batch in visits(task, epoch, rank) for number in batch
    )
    assert seen == Counter(range(len(task.splits.train)))


@given(tasks())
def test_batch_sizes_are_known_to_everybody(task: Task) -> None:
    """What replicas are weighted by in step s is what they really have in step s."""
    for rank in range(task.workers):
        real = [len(batch) for batch in visits(task, 0, rank)]
        planned = [sizes[rank] for sizes in task.batch_sizes]
        assert planned == real + [0] * (task.steps_per_epoch - len(real))
        assert planned[0] > 0
    assert any(task.batch_sizes[-1])


@given(tasks())
def test_evaluation_is_shared_out_without_rest(task: Task) -> None:
    part = task.splits.train
    shares = torch.cat([task.share(part, rank) for rank in range(task.workers)])
    assert shares.tolist() == list(range(len(part)))


@given(tasks())
def test_every_worker_computes_the_same_shards(task: Task) -> None:
    again = Task.of(task.resolved, task.splits, threads=2)
    assert [shard.tolist() for shard in task.shards] == [shard.tolist() for shard in again.shards]


def test_the_order_changes_with_epoch_and_replica() -> None:
    experiment = Experiment(model="mlp", workers=2, batch_size=50)
    train = Tensors(torch.zeros(100, 1), torch.zeros(100, dtype=torch.int64))
    task = Task.of(
        Resolved.of(experiment), Splits(name="made", train=train, shape=(1,), classes=1, outputs=1), threads=1
    )
    first, later = visits(task, 0, 0)[0].tolist(), visits(task, 1, 0)[0].tolist()
    assert first != later
    assert sorted(first) == sorted(later)


def test_more_workers_than_samples() -> None:
    train = Tensors(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    task = Task.of(
        Resolved.of(Experiment(model="mlp", workers=4)),
        Splits(name="made", train=train, shape=(1,), classes=1, outputs=1),
        threads=1,
    )
    with pytest.raises(ExperimentError, match="replicas"):
        _ = task.shards


class Views(nn.Module):
    """Flattens with `view`, which needs the channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.out = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        return self.out(x.view(len(x), -1))


def flattens() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))


@pytest.mark.parametrize(
    ("make", "fields", "expected"),
    [
        (flattens, {}, True),
        (flattens, {"optimizer": "lbfgs"}, False),
        (flattens, {"optimizer": torch.optim.NAdam}, False),
        (Views, {}, False),
        (nn.Flatten, {}, False),
        ("cnn", {}, True),
    ],
)
def test_networks_that_can_keep_their_channels_last(make: Any, fields: dict[str, Any], expected: bool) -> None:
    task = prepare(resolve(Experiment(model=make, data="digits", limit=64, **fields)))
    assert task.metadata.channels_last is expected
    if any(parameter.ndim == 4 for parameter in make_network(task).parameters()):
        weight = next(parameter for parameter in make_network(task).parameters() if parameter.ndim == 4)
        is_last = weight.stride()[1] == 1
        assert is_last is expected or weight.shape[1] == 1


def test_the_layout_changes_no_weight_before_training() -> None:
    network = flattens()
    task = prepare(resolve(Experiment(model=network, data="digits", limit=64)))
    for name, tensor in make_network(task).state_dict().items():
        assert tensor.equal(network.state_dict()[name])


@pytest.mark.parametrize(
    ("samples", "workers", "options", "portions"),
    [(400, 1, {}, 1), (400, 3, {}, 3), (1500, 1, {}, 2), (9000, 2, {}, 8), (400, 2, {"growth": 0.9}, 8)],
)
def test_portions_of_small_batches_are_few(samples: int, workers: int, options: dict[str, Any], portions: int) -> None:
    fields: dict[str, Any] = {"optimizer": "sandblaster-lbfgs", "optimizer_options": options, "oversubscribe": True}
    task = task_on_zeros(samples, workers=workers, **fields)
    assert task.vector_rows is not None
    assert task.vector_rows[1] == portions
