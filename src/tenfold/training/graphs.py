"""Whole training steps as CUDA graphs: recorded once, then replayed without Python or launches in between."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.data import Part
from tenfold.data.part import select_rows
from tenfold.experiment import Training
from tenfold.training.measures import Measure
from tenfold.training.replica import Replica
from tenfold.training.stacked_replicas import StackedReplicas, resident


def find_capture_obstacle(training: Training, part: Part) -> str:
    """Return why steps of this experiment cannot be captured, as the end of a sentence; "" when they can."""
    if training.needs_closure:
        return f"{training.optimizer} decides on the CPU when a step is over"
    if training.precision == "fp16":
        return "with fp16 it is decided on the CPU whether a step is skipped"
    if training.accumulate > 1:
        return "gradients are accumulated"
    if training.activation_checkpointing:
        return "activations are computed again, with the random numbers of the forward pass, which the CPU keeps"
    if resident(part) is None:
        scattered = hasattr(part, "x")  # tensors, but not of all samples
        unfit = "are not whole" if scattered else "are read sample by sample and do not stay"
        return f"the data {unfit} on the device"
    return ""


def describe_slow_steps(why: str) -> str:
    """Return the sentence that warns of steps that are not captured."""
    return f"steps are not captured in a CUDA graph, which is slow for small networks: {why}"


class Graphed(Replica):
    """A replica whose data stay on the device and whose steps are captured; a batch is given by its sample numbers.

    Where capturing turns out to be impossible, the same steps are done one operation after another.
    """

    def __init__(self, network: nn.Module, training: Training, loss: Measure, *, part: Part, **options: Any) -> None:
        super().__init__(network, training, loss, **options)
        found = resident(part)
        assert found is not None
        whole, self._numbers = found
        matrix = self.flat.vector[None]
        self.stacked = StackedReplicas(
            network, 1, training, loss, whole, lr_schedule=self.lr_schedule, matrix=matrix, method="loop"
        )

    def prepare(self, sizes: Mapping[int, int]) -> str:
        """Capture the steps for the batch sizes that occur often; return why that is not possible, or ""."""
        why = self.stacked.prepare({(0, 1, size): count for size, count in sizes.items()})
        return why and describe_slow_steps(why)

    def feed(self, part: Part, visits: list[Tensor]) -> Iterator[tuple[Any, Any]]:  # noqa: ARG002
        """Yield sample numbers, on the device."""
        sizes = [len(visit) for visit in visits]
        rows = torch.cat(visits).to(self.stacked.device)
        if self._numbers is not None:
            rows = self._numbers.index_select(0, rows)
        return ((some, None) for some in torch.split(rows, sizes))

    def batch(self, x: Any, y: Any) -> tuple[Any, Any]:  # noqa: ARG002
        """Return the samples with these numbers."""
        return select_rows(self.stacked.part.x, x), self.stacked.part.y[x]

    def step(self, x: Any, y: Any) -> Tensor:  # noqa: ARG002
        """Train on the samples with these numbers."""
        self.advance()
        self.stacked.optimizer.rate.fill_(self.rate)
        return self.stacked.learn(x[None], slice(0, 1))[0]

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return super().state() | {"optimizer": self.stacked.optimizer.tensors()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        own = self.stacked.optimizer.tensors()
        for name, tensor in state["optimizer"].items():
            own[name].copy_(tensor)
        super().load(state | {"optimizer": self.optimizer.state_dict()})
