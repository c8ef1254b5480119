"""How good a network is on a part of the data."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tenfold.data import Part, batches
from tenfold.training.measures import Measure
from tenfold.training.replica import autocast

BATCH, LARGE_BATCH = 128, 512
"""Samples at a time: on a CPU so few that activations stay in its cache, which is nearly twice as fast for `cnn`."""


def predict(
    network: nn.Module,
    part: Part,
    samples: Tensor,
    *,
    precision: str = "fp32",
    mark: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return the network's outputs for these samples of the part, in evaluation mode; it is left as it was.

    `mark` is called after every batch.
    """
    modes = [(module, module.training) for module in network.modules()]  # a frozen layer may differ from the whole
    network.eval()
    device_type = next((parameter.device.type for parameter in network.parameters()), "cpu")
    try:
        with torch.no_grad(), autocast(precision, device_type):
            size = BATCH if device_type == "cpu" else LARGE_BATCH
            outputs = []
            for x, _ in part.batches(batches(samples, size)):
                outputs.append(network(x))
                mark()
    finally:
        for module, training in modes:
            module.training = training
    joined = torch.cat(outputs) if outputs else torch.empty(0)
    return joined.float().cpu() if joined.is_floating_point() else joined.cpu()


def measure(outputs: Tensor, targets: Tensor, loss: Measure, metrics: dict[str, Measure]) -> dict[str, float]:
    """Return the loss and the metrics of these outputs."""
    with torch.no_grad():
        return {name: float(function(outputs, targets)) for name, function in {"loss": loss, **metrics}.items()}


def evaluate(
    network: nn.Module, part: Part, loss: Measure, metrics: dict[str, Measure], *, precision: str = "fp32"
) -> dict[str, float]:
    """Return the loss and the metrics over all samples of the part."""
    outputs = predict(network, part, torch.arange(len(part)), precision=precision)
    return measure(outputs, all_targets(part), loss, metrics)


def all_targets(part: Part) -> Tensor:
    """Return what is to be predicted for every sample of the part."""
    if part.targets is not None:
        return part.targets.cpu()
    return torch.cat([y for _, y in part.batches(batches(torch.arange(len(part)), LARGE_BATCH))]).cpu()
