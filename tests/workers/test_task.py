"""Law 1: every sample exactly once an epoch, over all replicas, however unequal their shards are."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenfold.common.catalog import SHARD_KINDS
from tenfold.data import Splits, Tensors, batches, order
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.workers.task import Task


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    workers = draw(st.integers(1, 9))
    samples = draw(st.integers(workers, 120))
    kind = draw(st.sampled_from(sorted(SHARD_KINDS)))
    parts = draw(st.lists(st.floats(0.05, 1), min_size=workers, max_size=workers))
    fractions = [part / sum(parts) for part in parts] if kind == "fractions" and workers > 1 else None
    labels = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=samples, max_size=samples)))
    experiment = Experiment(
        workers=workers,
        shards=kind if kind != "fractions" or fractions else "iid",
        fractions=fractions,
        skew=draw(st.sampled_from([0.05, 0.5, 50.0])),
        batch_size=draw(st.integers(1, 40)),
        seed=draw(st.integers(0, 99)),
        split_seed=draw(st.integers(0, 99)),
    )
    train = Tensors(torch.arange(samples, dtype=torch.float32)[:, None], labels)
    return Task(experiment, Splits(name="made", train=train, shape=(1,), classes=5, outputs=5), threads=1)


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
    again = Task(task.experiment, task.splits, threads=2)
    assert [shard.tolist() for shard in task.shards] == [shard.tolist() for shard in again.shards]


def test_the_order_changes_with_epoch_and_replica() -> None:
    experiment = Experiment(workers=2, batch_size=50)
    train = Tensors(torch.zeros(100, 1), torch.zeros(100, dtype=torch.int64))
    task = Task(experiment, Splits(name="made", train=train, shape=(1,), classes=1, outputs=1), threads=1)
    first, later = visits(task, 0, 0)[0].tolist(), visits(task, 1, 0)[0].tolist()
    assert first != later
    assert sorted(first) == sorted(later)


def test_more_workers_than_samples() -> None:
    train = Tensors(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    task = Task(Experiment(workers=4), Splits(name="made", train=train, shape=(1,), classes=1, outputs=1), threads=1)
    with pytest.raises(ExperimentError, match="3 training samples cannot be divided among 4 replicas; use 1 to 3"):
        _ = task.shards
