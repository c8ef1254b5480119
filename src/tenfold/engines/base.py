"""What every engine does: put replicas somewhere, and drive them to the end of the experiment."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tenfold.engines.task import Task
from tenfold.models import NETWORKS, build
from tenfold.runs import Clock, Emit, checkpoint
from tenfold.training import flat_size


@dataclass(frozen=True)
class Outcome:
    """What an engine returns: the result's numbers, and the weights of the mean of all replicas."""

    result: dict[str, Any]
    weights: dict[str, Any]
    outputs: torch.Tensor | None = None
    """What the network with these weights says to the test part, where the engine has kept it."""


@dataclass(frozen=True)
class Resumption:
    """Where to go on: the folder of a checkpoint, and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def ranks(self) -> Sequence[int]:
        """The saved workers whose states are taken on, in the order of those who do: all, unless some were lost."""
        return self.manifest.get("ranks") or range(self.manifest["workers"])

    def visible(self) -> list[int]:
        """Return the saved workers whose states are on this host's disk."""
        epoch, workers = self.manifest["epoch"], self.manifest["workers"]
        return [rank for rank in range(workers) if (self.folder / checkpoint.file_name(epoch, rank)).exists()]

    def state(self, rank: int) -> dict[str, Any]:
        """Return the saved state that a worker goes on from; where there are more workers now, some share one."""
        saved = self.ranks[rank % len(self.ranks)]
        return dict(checkpoint.load(self.folder / checkpoint.file_name(self.manifest["epoch"], saved)))


class Engine(ABC):
    """Where replicas run."""

    name: str

    @abstractmethod
    def run(self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end, telling of everything by events."""


def weight_bytes(task: Task) -> int:
    """Return the bytes of one replica's state."""
    return 4 * flat_size(make_network(task))


def make_network(task: Task) -> nn.Module:
    """Return the network that every replica starts from.

    The built-in ones keep their channels last, with which convolutions are up to 1.5 times faster on CPU. A user's own
    may flatten with `view`, and L-BFGS does, which both need the usual layout.
    """
    experiment, splits = task.experiment, task.splits
    network = build(experiment.model, splits.shape, splits.outputs, seed=experiment.training.seed)
    if experiment.model.name in NETWORKS and experiment.training.optimizer != "lbfgs":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network
