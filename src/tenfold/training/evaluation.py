"""How good a network is on a part of the data."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.data import Part, batches
from tenfold.data.tree import tree_concatenate, tree_leaves, tree_map
from tenfold.errors import ModelError
from tenfold.training.measures import Measure, as_number
from tenfold.training.network_call import call_network, find_main_output
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
) -> Any:
    """Return the network's outputs for these samples of the part, in evaluation mode; it is left as it was.

    They are a tensor, or a tuple or dict of tensors; a single number for a batch, such as a loss that the network
    computes, is repeated for each sample. `mark` is called after every batch.
    """
    modes = [(module, module.training) for module in network.modules()]  # a frozen layer may differ from the whole
    network.eval()
    device_type = next((parameter.device.type for parameter in network.parameters()), "cpu")
    try:
        with torch.no_grad(), autocast(precision, device_type):
            size = BATCH if device_type == "cpu" else LARGE_BATCH
            outputs = []
            for x, y in part.batches(batches(samples, size)):
                outputs.append(tree_map(partial(_by_sample, y=y), call_network(network, x)))
                mark()
    finally:
        for module, training in modes:
            module.training = training
    return tree_map(_on_cpu, join_outputs(outputs))


def join_outputs(outputs: Sequence[Any]) -> Any:
    """Return the outputs of several batches as those of one; an empty tensor where there are none."""
    found = [output for output in outputs if output is not None and len(tree_leaves(output)[0])]
    try:
        return tree_concatenate(found) if found else torch.empty(0)
    except RuntimeError as error:
        raise ModelError(
            f"the network's outputs for different batches cannot be joined ({error}); they should have the same shape, "
            "apart from the number of samples"
        ) from None


def _by_sample(output: Tensor, y: Any) -> Tensor:
    """Return an output with one row for each sample."""
    return output if output.ndim else output.expand(len(tree_leaves(y)[0]))


def _on_cpu(output: Tensor) -> Tensor:
    return output.float().cpu() if output.is_floating_point() else output.cpu()


def measure(outputs: Any, targets: Tensor, loss: Measure, metrics: Mapping[str, Measure]) -> dict[str, float]:
    """Return the loss and the metrics of these outputs."""
    if find_main_output(outputs) is None:
        metrics = {name: metric for name, metric in metrics.items() if not getattr(metric, "optional", False)}
    with torch.no_grad():
        return {name: as_number(one(outputs, targets), one) for name, one in {"loss": loss, **metrics}.items()}


def evaluate(
    network: nn.Module, part: Part, loss: Measure, metrics: Mapping[str, Measure], *, precision: str = "fp32"
) -> dict[str, float]:
    """Return the loss and the metrics over all samples of the part."""
    outputs = predict(network, part, torch.arange(len(part)), precision=precision)
    return measure(outputs, all_targets(part), loss, metrics)


def all_targets(part: Part) -> Tensor:
    """Return what is to be predicted for every sample of the part."""
    if part.targets is not None:
        return part.targets.cpu()
    return torch.cat([y for _, y in part.batches(batches(torch.arange(len(part)), LARGE_BATCH))]).cpu()
