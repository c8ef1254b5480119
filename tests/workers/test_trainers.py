"""Mixing without rounds, in threads: what is conserved, and what the result is made of."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_models import LAWFUL, SMALL
from threaded import Threads, make_task, state_of
from waiting import wait_until

from tenfold.experiment import Parallel
from tenfold.mixing import STRATEGIES

CENTRED = [name for name in STRATEGIES if STRATEGIES[name].has_center]
ASYNCHRONOUS = [name for name in STRATEGIES if STRATEGIES[name].asynchronous]
FEW: dict[str, Any] = {"limit": 60, "batch_size": 6, "epochs": 2}
STILL: dict[str, Any] = SMALL | {"limit": 40, "batch_size": 20, "epochs": 2, "lr": 1e-30, "momentum": 0.0}
"""Steps too small to change a weight: only mixing moves the replicas. One step an epoch."""


def center_of(threads: Threads) -> torch.Tensor:
    memory = threads.channels[0].exchange_memory
    assert memory is not None
    return memory.center


@pytest.mark.parametrize("strategy", CENTRED)
def test_the_result_is_the_center(strategy: str) -> None:
    threads = Threads(make_task(**SMALL | FEW, strategy=strategy, workers=3)).train()
    parameters = threads.workers[0].replica.flat.parameters
    for worker in threads.workers:
        assert torch.equal(worker.replica.flat.vector[:parameters], center_of(threads)[0, :parameters])


@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_batch_statistics_of_the_result_are_those_of_all(strategy: str) -> None:
    """Law 6 holds where there is a center, too: it has weights, but has seen no batch."""
    threads = Threads(make_task(**LAWFUL | FEW | {"epochs": 1}, strategy=strategy, workers=3), watch=True).train()
    last = [states[-1] for states in threads.after]
    samples = [len(shard) for shard in threads.task.shards]
    assert len(set(samples)) == 1
    for name in (name for name in last[0] if name.endswith("running_mean")):
        mean = sum(state[name] for state in last) / 3
        assert not torch.allclose(last[0][name], last[1][name])
        torch.testing.assert_close(threads.weights[name], mean, rtol=1e-5, atol=1e-6)
        squares = sum(state[name.replace("mean", "var")] + (state[name] - mean) ** 2 for state in last)
        torch.testing.assert_close(threads.weights[name.replace("mean", "var")], squares / 3, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_all_replicas_are_alike_at_the_end(strategy: str) -> None:
    threads = Threads(make_task(**LAWFUL | FEW, strategy=strategy, workers=3)).train()
    first, *others = [worker.replica.flat.vector for worker in threads.workers]
    assert all(torch.equal(first, other) for other in others)


def test_a_late_partner_is_not_forgotten_when_an_epoch_is_evaluated() -> None:
    """Worker 0 averages with worker 1 when that one already waits for the evaluation: both keep what they agreed on."""
    threads = Threads(make_task(**STILL, strategy="ad-psgd", workers=2))
    for worker in threads.workers:
        worker.replica.flat.vector[: worker.replica.flat.parameters] = float(worker.number)
    late, mix = threads.workers[0].trainer, threads.workers[0].trainer.average_weights_if_due

    def mix_late(step: int) -> None:
        time.sleep(0.3)
        mix(step)

    late.average_weights_if_due = mix_late  # type: ignore[method-assign]
    threads.train()
    assert all(bool((tensor == 0.5).all()) for tensor in threads.weights.values())


def test_elastic_exchanges_keep_the_sum() -> None:
    """x_i - d and center + d: what replicas lose the center gains."""
    task = make_task(**STILL, strategy="easgd", strategy_options={"tau": 1, "alpha": 0.25}, workers=2)
    threads = Threads(task, watch=True)
    center = center_of(threads)
    parameters = threads.workers[0].replica.flat.parameters
    center[0, :parameters] = 0.0
    for worker in threads.workers:
        worker.replica.flat.vector[:parameters] = 1.0 + worker.number
    threads.train()
    sums = [state["1.bias"][0] for state in (threads.after[0][-1], threads.after[1][-1])]
    assert float(sum(sums) + threads.weights["1.bias"][0]) == pytest.approx(3.0)
    assert 0 < float(threads.weights["1.bias"][0]) < 2


def test_staleness_is_told_by_every_worker() -> None:
    for strategy in ASYNCHRONOUS:
        fields = SMALL | FEW | {"strategy": strategy, "log_every": 1}
        options = {"tau": 2} if strategy == "easgd" else {}
        threads = Threads(make_task(**fields, strategy_options=options, workers=3)).train()
        told = [event for event in threads.events if getattr(event, "name", "") == "staleness"]
        assert {event.worker for event in told} == {0, 1, 2}
        assert all(getattr(event, "value", -1.0) >= 0 for event in told)


def test_what_is_pushed_is_where_the_replica_is() -> None:
    """The device without memory stands for a GPU."""
    from tenfold.workers.channels import single_worker_channels
    from tenfold.workers.task import Mixing
    from tenfold.workers.trainers import make_averaging_trainer

    mixing = Mixing.of(Parallel(strategy="downpour"))
    links = single_worker_channels(16, torch.device("meta"), mixing.strategy)
    replica: Any = SimpleNamespace(flat=SimpleNamespace(vector=links.transport.buffer, parameters=16))
    trainer = make_averaging_trainer(mixing, replica, links, [1.0])
    trainer.average_weights_if_due(1)
    assert trainer.bytes_moved > 0
    assert trainer.state()["accrued"].device.type == "meta"


def test_alone_with_the_server_downpour_is_adagrad() -> None:
    """w <- w - gamma g / sqrt(sum g^2), against torch's own Adagrad."""
    from tenfold.data import batches, order
    from tenfold.workers.task import make_network

    task = make_task(**SMALL | FEW, strategy="downpour", strategy_options={"gamma": 0.05}, workers=1)
    network = make_network(task)
    descent = torch.optim.Adagrad(network.parameters(), lr=0.05, eps=1e-10)
    for epoch in range(2):
        for x, y in task.splits.train.batches(batches(order(task.shards[0], 0, epoch, 0), 6)):
            descent.zero_grad()
            torch.nn.functional.cross_entropy(network(x), y).backward()
            descent.step()
    found = Threads(task).train()
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(found.weights[name], tensor, rtol=1e-4, atol=1e-5)
    assert state_of(found.workers[0]).keys() == found.weights.keys()


def test_servers_that_share_the_center_do_together_what_one_does() -> None:
    def train(**fields: Any) -> Threads:
        return Threads(make_task(**SMALL | FEW | {"strategy": "downpour"} | fields)).train()

    one, several = train().weights, train(strategy_options={"servers": 4}).weights
    assert all(torch.equal(one[name], several[name]) for name in one)
    threads = train(strategy_options={"servers": 4}, workers=3)
    parameters = threads.workers[0].replica.flat.parameters
    assert torch.equal(threads.workers[1].replica.flat.vector[:parameters], center_of(threads)[0, :parameters])


def test_while_one_server_is_busy_the_others_take_their_parts() -> None:
    threads = Threads(make_task(**SMALL | FEW, strategy="downpour", strategy_options={"servers": 2}, workers=1))
    [worker], memory = threads.workers, threads.channels[0].exchange_memory
    assert memory is not None
    parameters = worker.replica.flat.parameters
    center, first, second = center_of(threads)[0], slice(parameters // 2), slice(parameters // 2, parameters)
    before = center.clone()
    worker.trainer.gradients.fill_(1.0)
    with memory.holding(threads.task.workers + 1):  # the second server
        exchange = threading.Thread(target=worker.trainer.average_weights_if_due, args=(1,), daemon=True)
        exchange.start()
        wait_until(lambda: not (center[first] == before[first]).any())
        assert torch.equal(center[second], before[second])
        assert exchange.is_alive()
    exchange.join(10)
    assert not (center[second] == before[second]).any()
    threads.train()
