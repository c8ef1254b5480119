"""What the supervisor makes of the workers' messages."""

import math
from typing import Any

import pytest
import torch
from threaded import make_task

from tenfold.errors import ModelError
from tenfold.runs import Clock
from tenfold.workers.messages import EpochTrained, Finished
from tenfold.workers.supervisor import Supervisor

DATA = {"train": (torch.randn(8, 2), torch.randn(8)), "test": (torch.randn(4, 2), torch.randn(4))}


def supervisor(**fields: Any) -> Supervisor:
    return Supervisor(make_task(model="mlp", **{"data": DATA} | fields), Clock(), lambda event: None)


def trained(epoch: int, output: float) -> EpochTrained:
    outputs = torch.full((4, 1), output)
    return EpochTrained(epoch=epoch, step=epoch + 1, seconds=1.0, loss=1.0, samples=8, outputs=outputs)


def test_an_epoch_without_a_number_is_never_the_best_for_long() -> None:
    judge = supervisor(patience=2)
    decisions = [judge.decide([trained(epoch, output)]) for epoch, output in enumerate([math.nan, 9.0, 1.0])]
    assert [decision.best for decision in decisions] == [True, True, True]
    assert not any(decision.stop for decision in decisions)
    assert judge.best_epoch == 2


def test_what_cannot_be_measured_is_named() -> None:
    judge = supervisor(data=DATA | {"validation": DATA["train"]})
    finished = Finished(weights={}, outputs=torch.zeros(3, 1), seconds=1.0, times={}, step=1, bytes_moved=0)
    with pytest.raises(ModelError, match="of the test part cannot be measured"):
        judge.decide([finished])
