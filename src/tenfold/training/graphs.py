"""Whole training steps as CUDA graphs: recorded once, then replayed without Python or launches in between."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.data import Part
from tenfold.data.part import select_rows
from tenfold.experiment import Training
from tenfold.training.measures import Measure
from tenfold.training.replica import Replica, Visits, describe_slow_steps
from tenfold.training.stacked_replicas import StackedReplicas, resident, resident_order


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


class Graphed(Replica):
    """A replica whose data stay on the device and whose steps are captured; a batch is given by its sample numbers.

    Where capturing turns out to be impossible, the same steps are done one operation after another.
    """

    def __init__(self, network: nn.Module, training: Training, loss: Measure, *, part: Part, **options: Any) -> None:
        super().__init__(network, training, loss, **options)
        resident_data = resident(part)
        assert resident_data is not None
        whole, _ = resident_data
        matrix = self.flat.vector[None]
        self.stacked = StackedReplicas(
            network, 1, training, loss, whole, lr_schedule=self.lr_schedule, matrix=matrix, method="loop"
        )

    def prepare(self, sizes: Mapping[int, int]) -> str:
        """Capture the steps for the batch sizes that occur often; return why that is not possible, or ""."""
        why = self.stacked.prepare({(0, 1, size): count for size, count in sizes.items()})
        self.description = self.stacked.description
        return why and describe_slow_steps(why)

    def batches(self, visits: Sequence[Visits], batch_size: int) -> Iterator[tuple[Any, Any]]:
        """Yield sample numbers, on the device."""
        [(part, order)] = visits
        return ((some, None) for some in torch.split(resident_order(part, order, self.stacked.device), batch_size))

    def batch(self, x: Any, y: Any) -> tuple[Any, Any]:  # noqa: ARG002
        """Return the samples with these numbers."""
        return select_rows(self.stacked.part.x, x), self.stacked.part.y[x]

    def step(self, x: Any, y: Any) -> Tensor:  # noqa: ARG002
        """Train on the samples with these numbers."""
        self.begin_step()
        self.stacked.optimizer.lr.fill_(self.lr)
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
