"""What the coordinator makes of the workers' messages."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from threaded import make_task

from tenfold.data import Tensors
from tenfold.runs.events import Metric, Stopwatch, Warned
from tenfold.training.evaluation import EvaluatedShare, evaluate_share
from tenfold.workers.coordinator import Coordinator, EpochTrained, Finished

DATA = {"train": (torch.randn(8, 2), torch.randn(8)), "test": (torch.randn(4, 2), torch.randn(4))}


def coordinator(**fields: Any) -> Coordinator:
    return Coordinator(make_task(model="mlp", **{"data": DATA} | fields), Stopwatch(), lambda event: None)


def loss_of_probabilities(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.nll_loss(outputs.log(), targets)


def share(judge: Coordinator, outputs: torch.Tensor, first: int = 0) -> EvaluatedShare:
    """Return what a worker would report whose network has these outputs for the test samples from `first` on."""
    targets = judge.task.splits.parts["test"].targets
    assert targets is not None
    part = Tensors(outputs, targets[first : first + len(outputs)])
    return evaluate_share(torch.nn.Identity(), part, torch.arange(len(outputs)), judge.task.loss, judge.task.metrics)


def trained(judge: Coordinator, epoch: int, output: float) -> EpochTrained:
    evaluated = share(judge, torch.full((4, 1), output))
    return EpochTrained(epoch=epoch, step=epoch + 1, seconds=1.0, loss=1.0, samples=8, share=evaluated)


def test_an_epoch_without_a_number_is_never_the_best_for_long() -> None:
    judge = coordinator(patience=2)
    decisions = [judge.decide([trained(judge, epoch, output)]) for epoch, output in enumerate([math.nan, 9.0, 1.0])]
    assert [decision.best for decision in decisions] == [True, True, True]
    assert not any(decision.stop for decision in decisions)
    assert judge.best_epoch == 2


def test_the_time_of_an_epoch_is_that_of_the_slowest_worker() -> None:
    heard: list[Any] = []
    judge = Coordinator(make_task(model="mlp", data=DATA, workers=2), Stopwatch(), heard.append)
    shares = [share(judge, torch.zeros(2, 1), first) for first in (0, 2)]
    judge.decide(
        [replace(trained(judge, 0, 1.0), share=item, seconds=s) for item, s in zip(shares, (1.0, 3.0), strict=True)]
    )
    measured = [event for event in heard if isinstance(event, Metric)]
    assert {event.part for event in measured} == {"train", "test"}
    assert {event.seconds for event in measured} == {3.0}


@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        (None, "softmax"),
        ("cross-entropy", "softmax"),
        (loss_of_probabilities, "predict_proba"),
    ],
)
def test_what_is_said_of_probabilities_depends_on_the_loss(loss: Any, advice: str) -> None:
    labels = {"train": (torch.randn(8, 2), torch.arange(8) % 2), "test": (torch.randn(4, 2), torch.arange(4) % 2)}
    events: list[Any] = []
    judge = Coordinator(make_task(model="mlp", data=labels, loss=loss), Stopwatch(), events.append)
    evaluated = share(judge, torch.full((4, 2), 0.5))
    judge.decide([Finished(weights={}, share=evaluated, seconds=1.0, times={}, step=1, bytes_moved=0)])
    (warned,) = (event for event in events if isinstance(event, Warned))
    assert advice in warned.text
