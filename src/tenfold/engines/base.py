"""What every engine does: put replicas somewhere, and drive them to the end of the experiment."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from tenfold.runs import Clock, Emit
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task


@dataclass(frozen=True)
class Outcome:
    """What an engine returns: the result's numbers, and the weights of the mean of all replicas."""

    result: dict[str, Any]
    weights: dict[str, Any]
    outputs: torch.Tensor | None = None
    """What the network with these weights says to the test part, where the engine has kept it."""


class Engine(ABC):
    """Where replicas run."""

    name: str

    @abstractmethod
    def run(self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end, telling of everything by events."""
