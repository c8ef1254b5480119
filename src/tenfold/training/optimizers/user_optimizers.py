"""The user's own optimizers: a class of torch or of another package, or a function of the parameters."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tenfold.common.imports import resolve
from tenfold.common.user_code import user_frames
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.experiment.values import PythonObject, UnrecordedObject
from tenfold.training.optimizers.eager_optimizers import eager

NETWORK_NAMES = ("network", "net", "model", "module")
"""A function whose first argument has one of these names is given the network, not its parameters."""


def make_own_optimizer(training: Training, network: nn.Module) -> torch.optim.Optimizer:
    """Return the user's own optimizer of a network's parameters.

    The learning rate is passed on where it was given and the optimizer has one; the schedule changes it later, that of
    all parameter groups alike.
    """
    if "lr" in training.optimizer_options:
        raise ExperimentError("training.optimizer_options: the learning rate is a field of its own; set training.lr")
    make = own_optimizer(training)
    options = {key: tuple(v) if isinstance(v, list) else v for key, v in training.optimizer_options.items()}
    if training.weight_decay:
        options["weight_decay"] = training.weight_decay
    names = argument_names(make)
    if training.lr is not None and (not names or "lr" in names or "**" in names):
        options["lr"] = training.lr
    first = network if names and names[0] in NETWORK_NAMES else list(network.parameters())
    try:
        made = make(first, **options)
    except Exception as error:
        own = first is not network and not isinstance(make, type)
        hint = "; it is given a list of parameters, or the network if its argument is called network" if own else ""
        raise ExperimentError(
            f"training.optimizer = {training.optimizer} cannot be made: {type(error).__name__}: {error}{hint}"
            f"{user_frames(error)}"
        ) from error
    if isinstance(made, tuple | list):
        raise ExperimentError(
            f"training.optimizer = {training.optimizer} returned {len(made)} optimizers, and a step has one; give "
            "their parameters to one as groups, or write the loop yourself (a GAN needs that): tenfold.average and "
            "tenfold.shard"
        )
    if not isinstance(made, torch.optim.Optimizer):
        raise ExperimentError(
            f"training.optimizer = {training.optimizer} returned a {type(made).__name__}; it must return a "
            "torch.optim.Optimizer"
        )
    base = made.param_groups[0].get("lr")
    for group in made.param_groups[1:]:
        if base:
            group.setdefault("lr_ratio", float(group["lr"] / base))
    return made


def usual_rate(training: Training, network: nn.Module | None = None) -> float:
    """Return the learning rate that the user's own optimizer, made for this network, has by default."""
    try:
        made = make_own_optimizer(training, network or nn.Linear(2, 2))
        return float(made.param_groups[0]["lr"])
    except (ExperimentError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ExperimentError) and network is not None:
            raise
        if isinstance(error, ExperimentError) and "pass it again" in str(error):
            raise
        raise ExperimentError(
            f"the learning rate of training.optimizer = {training.optimizer} is not known; set training.lr ({error})"
        ) from error


def own_optimizer(training: Training) -> Callable[..., Any]:
    """Return the class or function that makes the user's own optimizer."""
    given = training.optimizer
    if isinstance(given, UnrecordedObject):
        raise ExperimentError(f"the optimizer {given} was given as a Python object; pass it again")
    value = given.value if isinstance(given, PythonObject) else resolve(given, "optimizer")
    if not callable(value):
        raise ExperimentError(f"training.optimizer = {given} is a {type(value).__name__}, not an optimizer")
    return eager(value) if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) else value


def argument_names(make: Callable[..., Any]) -> list[str]:
    """Return the names of a callable's arguments, with "**" where it takes any; empty where they are not known."""
    try:
        found = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return []
    return ["**" if argument.kind is argument.VAR_KEYWORD else argument.name for argument in found]
