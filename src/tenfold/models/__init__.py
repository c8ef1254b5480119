"""The built-in networks, one file each, and a user's own by import path or callable."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from tenfold.common import RANDOM_LOCK
from tenfold.common.imports import resolve
from tenfold.errors import ModelError
from tenfold.experiment import Model
from tenfold.experiment.values import PythonObject, UnrecordedObject
from tenfold.registry import MODELS

__all__ = ["build", "find_tensor_hook", "parameter_count"]


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
                f"model.options are for a callable of your own, but model {model.name} was given "
                f"{', '.join(model.options)}; hidden, activation, dropout and batchnorm are fields of their own"
            )
        if isinstance(shape, dict) or any(not isinstance(length, int) for length in shape):
            names = f" ({', '.join(shape)})" if isinstance(shape, dict) else ""
            raise ModelError(
                f"model {model.name} takes one input, but a sample of the data has {len(shape)}{names}; use a model of "
                "your own whose forward takes them, or select one with data.input_columns"
            )
        make, offered, who = MODELS[model.name], {"shape": shape, "outputs": outputs}, model.name
    else:
        options |= model.options
        make, who = _callable(model.name), str(model.name)
        if isinstance(make, partial) and make.func is _copied and options:
            raise ModelError(
                f"model {who} is a network that exists already, which cannot be given {', '.join(options)}; "
                "give a callable that returns a fresh one, such as its class"
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
            f"model {who} has returned the same network twice, but every replica needs its own; return a fresh one, or "
            "give the network itself, model=network, and each replica starts from a copy"
        )
    _returned.add(network)
    if any(isinstance(parameter, UninitializedParameter) for parameter in network.parameters()):
        raise ModelError(
            f"model {who} has lazy layers; give them their sizes, from the arguments `shape` and `outputs`"
        )
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
            f"the parameter {name} of the network {type(network).__name__} has hooks of its own, which a copy does not "
            "have; give a function that makes the network and registers them, or register hooks of modules"
        )
    try:
        return copy.deepcopy(network)
    except Exception as error:  # whatever the network's own parts raise
        raise ModelError(
            f"the network {type(network).__name__} cannot be copied for each replica ({type(error).__name__}: "
            f"{error}); give a callable that returns a fresh one, such as its class or a function"
        ) from error


def find_tensor_hook(network: nn.Module) -> str:
    """Return the name of a parameter with hooks of its own, such as those of `register_hook`; "" if there is none."""
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    named = network.named_parameters()
    return next((name for name, parameter in named if any(getattr(parameter, kind, None) for kind in kinds)), "")


def parameter_count(network: nn.Module) -> int:
    """Return how many numbers the network learns."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def _callable(name: str | PythonObject | UnrecordedObject) -> Callable[..., Any]:
    if isinstance(name, PythonObject):
        value = name.value
    elif isinstance(name, UnrecordedObject):
        raise ModelError(
            f"the model {name} was given as a Python object and cannot be found by name; pass it again, or build a "
            "recorded run's network yourself and give it the weights: network.load_state_dict(run.weights)"
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
