"""The replica of a worker: a plain one, or on a GPU one whose steps are captured."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tenfold.data import Part
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.training.capture import captures
from tenfold.training.measures import Measure
from tenfold.training.replica import Replica


def make_replica(
    network: nn.Module,
    training: Training,
    loss: Measure,
    *,
    part: Part,
    warn: Callable[[str], None],
    capturing: bool = True,
    **options: Any,
) -> Replica:
    """Return a replica that steps as fast as its device allows, or say once why it does not.

    `capturing` says whether steps may be captured as a whole, as far as the caller is concerned.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    if not captures(device):
        return Replica(network, training, loss, **options)
    from tenfold.training.graphs import Graphed, obstacle, slow

    why = obstacle(training, part) if capturing else "the replicas mix more than their weights"
    if not why:
        try:
            return Graphed(network, training, loss, part=part, **options)
        except ExperimentError as error:
            why = str(error)
    warn(slow(why))
    return Replica(network, training, loss, **options)
