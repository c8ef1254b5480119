"""What comes out of a training, and of a run that recorded it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tenfold.experiment import Experiment
from tenfold.runs import Clock, Emit, Store
from tenfold.runs.predictions import Predictions
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task


@dataclass(frozen=True)
class Outcome:
    """What an engine returns: the result's numbers, and the weights of the mean of all replicas."""

    result: dict[str, Any]
    weights: dict[str, Any]
    outputs: torch.Tensor | None = None
    """The trained network's outputs on the test part, where the engine has kept them."""
    predictions: dict[str, Predictions] = field(default_factory=dict)
    """By part, the outputs to store with the run."""


Train = Callable[[Task, Clock, Emit, Resumption | None], Outcome]
"""Trains a task to the end and emits everything that happens as events."""


@dataclass(frozen=True)
class RecordedRun:
    """A finished run: where it is recorded, its record, and its outcome."""

    store: Store
    record: dict[str, Any]
    outcome: Outcome
    experiment: Experiment

    @classmethod
    def finished(cls, store: Store, number: int, outcome: Outcome, experiment: Experiment) -> "RecordedRun":
        """Return a run that has just ended, with its whole result even where the store could not take it."""
        return cls(store, store.find(number) | {"result": outcome.result}, outcome, experiment)
