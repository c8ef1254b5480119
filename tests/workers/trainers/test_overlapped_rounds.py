"""What overlapped rounds do: the replicas of one step are averaged after the next one."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import SMALL
from threaded import State, Threads, make_task

from tenfold.common.optimizer_traits import OPTIMIZER_TRAITS
from tenfold.runs import EpochEnded, Event, checkpoint
from tenfold.runs.checkpoint import Resumption

FEW: dict[str, Any] = {"limit": 60, "epochs": 2, "batch_size": 6, "overlap": True}


def rows(states: list[State], name: str) -> torch.Tensor:
    """All replicas' values of a tensor, one per row."""
    return torch.stack([state[name].double().flatten() for state in states])


@pytest.mark.parametrize("strategy", ["allreduce", "butterfly", "ring", "hopping-ring"])
@pytest.mark.parametrize(
    "shards", [{}, {"shards": "fractions", "fractions": [0.4, 0.3, 0.2, 0.1]}], ids=["", "unequal"]
)
def test_a_round_adds_what_it_would_have_changed_one_step_before(strategy: str, shards: dict[str, Any]) -> None:
    threads = Threads(make_task(**SMALL | FEW | shards, strategy=strategy, workers=4), watch=True).train()
    samples = [float(len(shard)) for shard in threads.task.shards]
    rounds, name = threads.rounds(), "1.weight"
    trainer: Any = threads.workers[0].trainer
    torch.testing.assert_close(rows(rounds[0][0], name), rows(rounds[0][1], name))  # the first only begins
    for r, ((_, old), (before, after)) in enumerate(itertools.pairwise(rounds)):
        matrix = torch.from_numpy(trainer.rounds.strategy.round(r, 4).matrix(samples))
        added = matrix @ rows(old, name) - rows(old, name)
        torch.testing.assert_close(rows(after, name), rows(before, name) + added, rtol=1e-5, atol=1e-6)


def test_no_worker_needs_another_for_the_step_that_it_is_in() -> None:
    """Each publishes before anybody collects, so that a slow worker delays nobody at once."""
    threads = Threads(make_task(**SMALL | FEW, strategy="ring", workers=2))
    slow, fast = (worker.trainer for worker in threads.workers)
    slow.average_weights_if_due(1)
    fast.average_weights_if_due(1)
    fast.average_weights_if_due(2)  # would wait for ever if it needed the other's second step
    assert fast.bytes_moved == 2 * slow.bytes_moved


@pytest.mark.parametrize(
    "fields", [{"sync_every": 3}, {"optimizer": "muon", "optimizer_state": "average", "strategy": "ring"}]
)
def test_a_round_that_has_begun_is_saved_and_resumed(fields: dict[str, Any], tmp_path: Path) -> None:
    fields = SMALL | FEW | fields | {"batchnorm": True, "workers": 3, "epochs": 3, "batch_size": 7}
    whole = Threads(make_task(**fields)).train()
    saved = Threads(make_task(tmp_path, **fields))

    class Stop(Exception):  # noqa: N818
        pass

    emit = saved.supervisor.emit

    def interrupt(event: Event) -> None:
        emit(event)
        if isinstance(event, EpochEnded) and event.epoch == 2:
            raise Stop

    saved.supervisor.emit = interrupt
    with pytest.raises(Stop):
        saved.train()
    manifest = checkpoint.find_undamaged(tmp_path)[0]
    assert manifest is not None
    resumed = Threads(make_task(tmp_path, **fields), resumption=Resumption(tmp_path, manifest)).train()
    assert all(torch.equal(resumed.weights[name], tensor) for name, tensor in whole.weights.items())


def test_what_may_overlap_has_a_known_size() -> None:
    assert all(traits.state_vectors for traits in OPTIMIZER_TRAITS.values() if traits.state_may_overlap)


@pytest.mark.parametrize("partner", ["sgd", "adamw"])
def test_there_is_room_for_the_optimizers_state_and_second_moments_stay_positive(partner: str) -> None:
    fields: dict[str, Any] = {
        "optimizer": "muon",
        "optimizer_options": {"partner": partner},
        "optimizer_state": "average",
    }
    if partner == "adamw":  # for all parameters but the first matrix, which needs the most room
        fields["optimizer_options"] |= {"output": "partner"}
    threads = Threads(make_task(**SMALL | FEW | fields, strategy="ring", workers=2))
    assert threads.task.experiment.vectors_per_round == 3
    for rank, worker in enumerate(threads.workers):
        for parameter in worker.replica.learning:
            parameter.grad = torch.full_like(parameter, rank + 1.0)
        worker.replica.optimizer.step()
        worker.trainer.average_weights_if_due(1)
    for worker in threads.workers:  # as if a step had left nothing of what the round takes away
        for state in worker.replica.optimizer.state.values():
            if "exp_avg_sq" in state:
                state["exp_avg_sq"].zero_()
        worker.trainer.average_weights_if_due(2)
        seconds = [state["exp_avg_sq"] for state in worker.replica.optimizer.state.values() if "exp_avg_sq" in state]
        assert bool(seconds) == (partner == "adamw")
        assert all((second >= 0).all() for second in seconds)
