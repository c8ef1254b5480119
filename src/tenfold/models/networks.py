"""Networks: mlp, lenet5, cnn, a vector of weights for calibration, and users' own."""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy

from tenfold.common import RANDOM_LOCK
from tenfold.common.imports import resolve
from tenfold.errors import ModelError
from tenfold.experiment import Model
from tenfold.experiment.values import PythonObject, UnrecordedObject
from tenfold.registry import MODELS, Registry


def build(model: Model, shape: Any, outputs: int, *, seed: int) -> nn.Module:
    """Return a fresh network for samples of this shape; the same seed gives the same first weights.

    Samples with several inputs have a tuple or dict of shapes, which only a user's own model can take. A callable of
    the user's own is given `shape` and `outputs` where its signature names them; a network of the user's is copied.
    """
    chosen = {key: getattr(model, key) for key in ("hidden", "activation", "dropout", "batchnorm")}
    options = {key: value for key, value in chosen.items() if value is not None}
    if isinstance(model.name, str) and model.name in MODELS:
        if model.options:
            raise ModelError(
                f"model.options are only for a callable of your own, but model {model.name} got "
                f"{', '.join(model.options)}; set model.hidden, activation, dropout or batchnorm instead"
            )
        if isinstance(shape, dict) or any(not isinstance(length, int) for length in shape):
            names = f" ({', '.join(shape)})" if isinstance(shape, dict) else ""
            raise ModelError(
                f"model {model.name} takes one input, but a sample of the data has {len(shape)}{names}; use a model of "
                "your own whose forward takes all of them, or select one with data.input_columns"
            )
        make, offered, who = MODELS[model.name], {"shape": shape, "outputs": outputs}, model.name
    else:
        options |= model.options
        make, who = _callable(model.name), str(model.name)
        if isinstance(make, partial) and make.func is _copied and options:
            raise ModelError(
                f"model {who} is a network, not a callable, and takes no options ({', '.join(options)}); "
                "give a callable that returns a new network, such as its class"
            )
        accepted = _parameters(make)
        offered = {key: value for key, value in {"shape": shape, "outputs": outputs}.items() if key in accepted}
    arguments = offered | options
    _check_arguments(make, arguments, who)
    with RANDOM_LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make(**arguments)
    if not isinstance(network, nn.Module):
        raise ModelError(f"model {who} returned a {type(network).__name__}; it must return an nn.Module")
    if network in _returned:
        raise ModelError(
            f"model {who} returned the same network twice, but every replica needs its own; return a new one, or "
            "pass the network itself, model=network, and each replica gets a copy"
        )
    _returned.add(network)
    if any(isinstance(parameter, UninitializedParameter) for parameter in network.parameters()):
        raise ModelError(f"model {who} has lazy layers; give them sizes, from the arguments `shape` and `outputs`")
    require_own_memory(network)
    return network


_returned: WeakSet[nn.Module] = WeakSet()
"""The networks that were made and are still in use."""


def _copied(network: nn.Module) -> nn.Module:
    """Return a copy of a user's network, which itself is left as it is."""
    if isinstance(network, torch.jit.ScriptModule):
        raise ModelError(
            "a scripted network cannot be copied for each replica; give a function that returns it: "
            "model=lambda: torch.jit.script(Network())"
        )
    if name := find_tensor_hook(network):
        raise ModelError(
            f"the parameter {name} of the network {type(network).__name__} has hooks, which copies would lack; give "
            "a function that creates the network and registers them, or register hooks on modules"
        )
    require_own_memory(network)
    try:
        return copy.deepcopy(network)
    except Exception as error:  # whatever the network's own parts raise
        raise ModelError(
            f"the network {type(network).__name__} cannot be copied for each replica ({type(error).__name__}: "
            f"{error}); give a callable that returns a new network, such as its class or a function"
        ) from error


def find_tensor_hook(network: nn.Module) -> str:
    """Return the name of a parameter with hooks of its own, such as those of `register_hook`; "" if there is none."""
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    named = network.named_parameters()
    return next((name for name, parameter in named if any(getattr(parameter, kind, None) for kind in kinds)), "")


def require_own_memory(network: nn.Module) -> None:
    """Raise ModelError if two tensors share memory without being the same: in a replica each has its own place."""
    tensors = (*network.named_parameters(), *network.named_buffers())
    places = sorted((*_place_of(tensor), name) for name, tensor in tensors if _has_memory(tensor))
    for (_, end, one), (begin, _, other) in pairwise(places):
        if begin < end:
            raise ModelError(
                f"{one} and {other} of the network share memory but are different tensors; make both the "
                "same nn.Parameter, or copy one with clone()"
            )


def _has_memory(tensor: Tensor) -> bool:
    return not (is_lazy(tensor) or tensor.is_meta) and tensor.layout is torch.strided and tensor.numel() > 0


def _place_of(tensor: Tensor) -> tuple[int, int]:
    """Return the first address of a tensor and the end of its memory; of one with gaps, only the first number."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    numel = extent if extent == tensor.numel() else 1  # other tensors may lie in the gaps
    return tensor.data_ptr(), tensor.data_ptr() + numel * tensor.element_size()


def parameter_count(network: nn.Module) -> int:
    """Return how many numbers the network learns."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def _callable(name: str | PythonObject | UnrecordedObject) -> Callable[..., Any]:
    if isinstance(name, PythonObject):
        value = name.value
    elif isinstance(name, UnrecordedObject):
        raise ModelError(
            f"the model {name} was given as a Python object and cannot be imported by name; pass it again, or build "
            "the network yourself and call network.load_state_dict(run.weights)"
        )
    else:
        value = resolve(name, "model")
    if isinstance(value, nn.Module):
        return partial(_copied, value)
    if not callable(value):
        raise ModelError(f"model {name} is a {type(value).__name__}; it must be a callable that returns an nn.Module")
    return value


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        return {}


def _check_arguments(make: Callable[..., Any], arguments: dict[str, Any], who: str) -> None:
    accepted = _parameters(make)
    options = ", ".join(name for name in accepted if name not in ("shape", "outputs")) or "none"
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        for key in arguments:
            if key not in accepted:
                raise ModelError(f"model {who} has no option '{key}'; its options: {options}")
    for key, parameter in accepted.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and key not in arguments:
            raise ModelError(f"model {who} needs '{key}'; give it in model.options, such as {{{key} = ...}}")


class Vector(nn.Module):
    """Predicts the mean of its weights, whatever it is shown; a step reads and writes each weight, as any step does."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(numel))

    def forward(self, x: Tensor) -> Tensor:
        return self.weights.mean().expand(len(x), 1)


ACTIVATIONS: Registry[Callable[[], nn.Module]] = Registry(
    "activation",
    {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "gelu": nn.GELU},
    error=ModelError,
)


def between(activation: str, normalize: nn.Module | None, dropout: float = 0.0) -> Iterator[nn.Module]:
    """Yield the modules after a layer: normalization, the activation, dropout; each only if requested."""
    if normalize is not None:
        yield normalize
    yield ACTIVATIONS[activation]()
    if dropout:
        yield nn.Dropout(dropout)


def image_sides(shape: tuple[int, ...], network: str) -> tuple[int, int, int]:
    """Return channels, height and width of a sample; raise ModelError if it is not an image."""
    if len(shape) != 3:
        raise ModelError(
            f"{network} takes images, (channels, height, width), but a sample here has shape {shape}; "
            'model = "mlp" takes any shape'
        )
    return shape[0], shape[1], shape[2]


# Standardized inputs, filled-in missing values, and outputs in the units of the targets, as part of a network.
#
# Means and deviations are those of the training part, and are buffers of the network: they are saved with the
# weights, and a trained network takes inputs as they were given and predicts in the units of the targets. In a cross-
# validation each fold has its own.

ChangeMain = Callable[[Callable[[Tensor], Tensor], Any], Any]
"""Applies a function to the main output among a network's outputs."""
BUFFERS = {
    "mean": "input_mean",
    "deviation": "input_deviation",
    "target_mean": "target_mean",
    "target_deviation": "target_deviation",
}
"""The buffers of the network, by the names that they have in `Splits.scaling`."""


def add_scaling(network: nn.Module, scaling: dict[str, Tensor], change_main: ChangeMain) -> nn.Module:
    """Let a network convert its inputs and its main output, as far as `scaling` says how.

    Missing inputs (NaN) are replaced by `mean`; then `mean` is subtracted, and the rest divided by `deviation`. The
    output is multiplied by `target_deviation`, and `target_mean` is added.
    """
    dtype = next((parameter.dtype for parameter in network.parameters() if parameter.is_floating_point()), None)
    for name, tensor in scaling_buffers(scaling).items():
        network.register_buffer(name, tensor.to(dtype=dtype, copy=True))
    if "mean" in scaling:
        network.register_forward_pre_hook(_scale_inputs)
    if "target_mean" in scaling:
        network.register_forward_hook(partial(_scale_outputs, change_main))
    return network


def scaling_buffers(scaling: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Return the buffers of a network that converts inputs or outputs, by name; none where it does not."""
    return {BUFFERS[key]: tensor for key, tensor in (scaling or {}).items()}


def scaling_in(weights: dict[str, Any]) -> dict[str, Tensor]:
    """Return the scaling that was saved with a network's weights; empty if it has none."""
    scaling: dict[str, Tensor] = {}
    for keys in (("mean", "deviation"), ("target_mean", "target_deviation")):
        if all(BUFFERS[key] in weights for key in keys):
            scaling |= {key: weights[BUFFERS[key]] for key in keys}
    return scaling


def _scale_inputs(network: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *others = args
    mean, deviation = network.get_buffer("input_mean"), network.get_buffer("input_deviation")
    if deviation.shape != mean.shape:  # missing values are filled in, but nothing is standardized
        return torch.where(torch.isnan(x), mean, x), *others
    return torch.nan_to_num((x - mean) / deviation, nan=0.0), *others


def _scale_outputs(change_main: ChangeMain, network: nn.Module, _args: tuple[Any, ...], outputs: Any) -> Any:
    return change_main(partial(_in_units, network), outputs)


def _in_units(network: nn.Module, output: Tensor) -> Tensor:
    mean, deviation = network.get_buffer("target_mean"), network.get_buffer("target_deviation")
    if mean.numel() == 1:
        mean, deviation = mean.reshape(()), deviation.reshape(())
    elif output.ndim and output.shape[1:].numel() == mean.numel():
        mean, deviation = mean.reshape(output.shape[1:]), deviation.reshape(output.shape[1:])
    return output * deviation + mean


def lenet5(
    shape: tuple[int, ...], outputs: int, *, activation: str = "relu", dropout: float = 0.0, batchnorm: bool = False
) -> nn.Module:
    """Return two convolutions and three linear layers: 61,706 parameters for 28x28 images and 10 classes.

    Images under 12 pixels, too small for two 5x5 windows and two poolings, are padded before both convolutions.
    """
    channels, height, width = image_sides(shape, "lenet5")
    padding = 0 if min(height, width) >= 12 else 2
    high, wide = (((side // 2) - 4 + 2 * padding) // 2 for side in (height, width))
    if min(high, wide) < 1:
        raise ModelError(f"lenet5 needs images of at least 4x4 pixels, not {height}x{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        *between(activation, nn.BatchNorm2d(6) if batchnorm else None),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=padding),
        *between(activation, nn.BatchNorm2d(16) if batchnorm else None),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * high * wide, 120),
        *between(activation, nn.BatchNorm1d(120) if batchnorm else None, dropout),
        nn.Linear(120, 84),
        *between(activation, nn.BatchNorm1d(84) if batchnorm else None, dropout),
        nn.Linear(84, outputs),
    )


def cnn(
    shape: tuple[int, ...], outputs: int, *, activation: str = "relu", dropout: float = 0.0, batchnorm: bool = False
) -> nn.Module:
    """Return convolutions of 32 and 64 channels and a linear layer of 128: 1.2 M parameters for 28x28 images."""
    channels, height, width = image_sides(shape, "cnn")
    high, wide = ((side - 4) // 2 for side in (height, width))
    if min(high, wide) < 1:
        raise ModelError(f"cnn needs images of at least 6x6 pixels, not {height}x{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        *between(activation, nn.BatchNorm2d(32) if batchnorm else None),
        nn.Conv2d(32, 64, 3),
        *between(activation, nn.BatchNorm2d(64) if batchnorm else None),
        nn.MaxPool2d(2),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Flatten(),
        nn.Linear(64 * high * wide, 128),
        *between(activation, nn.BatchNorm1d(128) if batchnorm else None, dropout),
        nn.Linear(128, outputs),
    )


def mlp(
    shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Sequence[int] = (128,),
    activation: str = "relu",
    dropout: float = 0.0,
    batchnorm: bool = False,
) -> nn.Module:
    """Return linear layers of the hidden widths and one for the outputs, over samples of any shape."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for units in hidden:
        layers.append(nn.Linear(width, units))
        layers.extend(between(activation, nn.BatchNorm1d(units) if batchnorm else None, dropout))
        width = units
    return nn.Sequential(*layers, nn.Linear(width, outputs))
