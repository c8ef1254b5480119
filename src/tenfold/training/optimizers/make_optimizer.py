"""Optimizers by name, torch's own and Muon, and their learning rates."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tenfold.common import catalog
from tenfold.common.optimizer_traits import OptimizerTraits
from tenfold.common.registry import Registry, suggest
from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Training
from tenfold.experiment.section_fields import USUAL_BATCH
from tenfold.experiment.values import format_value
from tenfold.training.optimizers.eager_optimizers import eager
from tenfold.training.optimizers.user_optimizers import (
    argument_names,
    make_own_optimizer,
    own_optimizer,
    usual_rate,
)

OPTIMIZERS: Registry[type[torch.optim.Optimizer]] = catalog.OPTIMIZERS


def base_rate(training: Training, network: nn.Module | None = None) -> float:
    """Return the learning rate before it is scaled with the workers: the one that was given, or the optimizer's usual.

    To find the usual rate of a user's own optimizer, it is made for the network, or without one for a single layer.
    """
    if training.lr is not None:
        return training.lr
    if not isinstance(training.optimizer, str) or training.optimizer not in OPTIMIZERS:
        return usual_rate(training, network)
    traits = training.optimizer_traits
    if traits.lr is None:
        return float(inspect.signature(OPTIMIZERS[training.optimizer]).parameters["lr"].default)
    return traits.lr * (math.sqrt(training.samples_per_step / USUAL_BATCH) if traits.lr_grows_with_batch else 1)


def make_optimizer(training: Training, network: nn.Module, lr: float | None = None) -> torch.optim.Optimizer:
    """Return the optimizer of a network's parameters, as the experiment describes it.

    `lr` replaces the experiment's own learning rate, for example when it is scaled up for several workers.
    """
    if next(network.parameters(), None) is None:
        raise ModelError("the model has no parameters, so that nothing can be trained; register them as nn.Parameter")
    if not isinstance(training.optimizer, str) or training.optimizer not in OPTIMIZERS:
        return make_own_optimizer(training, network)
    traits = training.optimizer_traits
    options: dict[str, Any] = {"lr": lr or base_rate(training)}
    options |= {name: getattr(training, name) for name in traits.fields}
    if traits.has_weight_decay:
        options["weight_decay"] = training.weight_decay
    elif training.weight_decay:
        raise ExperimentError(
            f"training.weight_decay: {training.optimizer} has none; leave it 0 or use another optimizer"
        )
    given = training.optimizer_options
    if "lr" in given:
        raise ExperimentError("training.optimizer_options: the learning rate is a field of its own; set training.lr")
    if _has_fused_kernel(traits, network) and not given.keys() & {"foreach", "differentiable", "capturable"}:
        options["fused"] = True
    options |= {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
    try:
        optimizer: Callable[..., torch.optim.Optimizer] = eager(OPTIMIZERS[training.optimizer])
        return optimizer(network if traits.takes_network else list(network.parameters()), **options)
    except Exception as error:  # torch may raise anything for options that do not fit
        raise ExperimentError(f'training.optimizer = "{training.optimizer}" cannot be made: {error}') from None


def try_options(training: Training) -> None:
    """Raise ExperimentError for options that the optimizer does not have or cannot step with, before anything starts.

    Of a user's own optimizer, which may need the network itself, only the names of options are checked.
    """
    built_in = isinstance(training.optimizer, str) and training.optimizer in OPTIMIZERS
    names = argument_names(OPTIMIZERS[training.optimizer] if built_in else own_optimizer(training))  # type: ignore[index]
    for option in training.optimizer_options:
        if names and option not in names and "**" not in names:
            known = [name for name in names[1:] if name != "lr"]
            raise ExperimentError(
                f"training.optimizer_options: {training.optimizer} has no option '{option}'; {suggest(option, known)}"
            )
    if built_in:
        _try_step(training)


def _try_step(training: Training) -> None:
    """Take a step with a small network; torch finds some values of the wrong type only then."""
    with torch.random.fork_rng(devices=[]):
        network = nn.Linear(2, 2)
    optimizer = make_optimizer(training, network)

    def loss() -> float:
        value = network(torch.ones(1, 2)).square().sum()
        value.backward()
        return float(value.detach())

    loss()
    try:
        optimizer.step(loss)
    except (AssertionError, RuntimeError):  # perhaps due to the device: some options work on GPUs only
        return
    except Exception as error:  # torch may raise anything for values that do not fit
        if not training.optimizer_options:
            raise ExperimentError(f'training.optimizer = "{training.optimizer}" cannot step: {error}') from None
        given = ", ".join(f"{name} = {format_value(value)}" for name, value in training.optimizer_options.items())
        raise ExperimentError(
            f"training.optimizer_options: {training.optimizer} cannot step with {given}; a value has a wrong type"
        ) from None


def has_sparse_gradients(network: nn.Module) -> bool:
    """Return whether an embedding of the network gives sparse gradients."""
    return any(getattr(layer, "sparse", False) is True for layer in network.modules())


def _has_fused_kernel(traits: OptimizerTraits, network: nn.Module) -> bool:
    """Return whether torch has one kernel that steps all parameters of this network."""
    if traits.fused_kernel == "none" or has_sparse_gradients(network):
        return False
    on_cpu_only = traits.fused_kernel == "cpu"
    return all(
        p.dtype.is_floating_point and _dense(p) and (p.device.type == "cpu" or not on_cpu_only)
        for p in network.parameters()
    )


def _dense(parameter: nn.Parameter) -> bool:
    return parameter.is_contiguous() or (
        parameter.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
    )
