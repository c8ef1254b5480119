"""Call a network with one tensor or several inputs as arguments, in a given precision, and read its outputs."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tenfold.data.part import shape_of, tree_leaves
from tenfold.errors import ModelError


def call_network(network: nn.Module, inputs: Any) -> Any:
    """Return the network's outputs: a tensor, or a tuple or dict of tensors."""
    if isinstance(inputs, (Tensor, PackedSequence)):
        outputs = network(inputs)
    else:
        args, kwargs = arguments_of(network, inputs)
        outputs = network(*args, **kwargs)
    return outputs if isinstance(outputs, Tensor) and outputs.ndim else plain_outputs(outputs)


def autocast(precision: str, device_type: str) -> AbstractContextManager[Any]:
    """Return the context in which forward passes of this precision run."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device_type, dtype=kinds[precision]) if precision in kinds else nullcontext()


def arguments_of(network: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments: `forward(a, b)` for a tuple, `forward(**inputs)` for a dict.

    A `forward` that cannot take them, such as `forward(inputs)`, gets the tuple or dict itself.
    """
    if isinstance(inputs, (Tensor, PackedSequence)):
        return (inputs,), {}
    misfit = _misfit_of(network, inputs)
    if not misfit:
        return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    if len(inspect.signature(network.forward).parameters) == 1:
        return (inputs,), {}
    given = f"the inputs {', '.join(inputs)}" if isinstance(inputs, Mapping) else f"{len(inputs)} inputs"
    raise ModelError(
        f"forward of {type(network).__name__} cannot be called with {given}: {misfit}; "
        "select inputs with data.input_columns"
    )


def takes_inputs(network: nn.Module, inputs: Any) -> bool:
    """Return whether `forward` can be called with a tuple of this many inputs, or with a dict of these names."""
    return not _misfit_of(network, inputs)


def _misfit_of(network: nn.Module, inputs: Any) -> str:
    if isinstance(inputs, Mapping):
        return _misfit(type(network).forward, 0, tuple(inputs))
    return _misfit(type(network).forward, len(inputs), ())


@cache
def _misfit(forward: Callable[..., Any], positional: int, keywords: tuple[str, ...]) -> str:
    """Return why `forward` cannot take this number of positional arguments, or these keywords, or ""."""
    try:
        inspect.signature(forward).bind(None, *range(positional), **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return ""


def plain_outputs(outputs: Any) -> Any:
    """Convert outputs to tensors in plain tuples and dicts, without values that are not tensors.

    A scalar is a loss that the network computed itself. Outputs of Hugging Face models, dataclasses and named tuples
    are converted, so that they can be concatenated and sent to other processes.
    """
    if isinstance(outputs, Tensor):
        return outputs if outputs.ndim else {"loss": outputs}
    outputs_found = _plain(outputs)
    if outputs_found is None and hasattr(outputs, "__dict__"):  # an object with tensors as attributes: loss, logits
        outputs_found = _plain(vars(outputs))
    if outputs_found is None or not tree_leaves(outputs_found):
        raise ModelError(
            f"the network returned a {type(outputs).__name__} without tensors; it should return a tensor, or a tuple "
            "or dict of tensors"
        )
    return outputs_found


def _plain(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, Mapping):
        outputs = {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
    if isinstance(outputs, Mapping):
        plain = {str(key): _plain(item) for key, item in outputs.items()}
        return {key: item for key, item in plain.items() if item is not None}
    if isinstance(outputs, (tuple, list)):
        return tuple(item for item in map(_plain, outputs) if item is not None)
    return None


class Outputs(dict[str, Any]):
    """The outputs of a network by name, also as attributes: `outputs.logits`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the network returned no '{name}'; it returned {', '.join(self)}") from None


def describe_outputs(outputs: Any) -> str:
    shape = shape_of(outputs)
    if isinstance(shape, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in shape.items()) + "}"
    return str(shape)
