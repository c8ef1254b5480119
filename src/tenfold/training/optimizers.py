"""Builds the optimizer of an experiment, with its learning rate and options, and moves its state.

The names of optimizers and their usual learning rates are in `common/optimizer_defaults.py`.
"""

import copy
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.common import RANDOM_LOCK
from tenfold.common.imports import resolve, user_frames
from tenfold.common.optimizer_defaults import OPTIMIZERS, OptimizerTraits
from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Training
from tenfold.experiment.section_fields import USUAL_BATCH
from tenfold.experiment.values import PythonObject, UnrecordedObject, format_value
from tenfold.registry import suggest

ASSUMED = 2
"""As many vectors as Adam keeps, for an optimizer that does not step without a batch."""


def count_state_vectors(training: Training, network: nn.Module) -> int:
    """Return the number of state vectors of the size of the weights after an optimizer step."""
    weights = sum(parameter.nbytes for parameter in network.parameters() if parameter.requires_grad)
    try:
        return math.ceil(sum(state_bytes(training, network).values()) / max(1, weights))
    except Exception:  # a user's own optimizer may need more: sparse gradients, a closure
        return ASSUMED


def state_bytes(training: Training, network: nn.Module) -> dict[str, int]:
    """Return the bytes of each state vector after an optimizer step with zero gradients, by name."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not parameters:
        return {}
    optimizer = make_optimizer(training, network)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept: dict[str, int] = defaultdict(int)
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.ndim:
                kept[name] += value.nbytes
    return dict(kept)


def make_missing_states(
    optimizer: torch.optim.Optimizer, missing: Collection[nn.Parameter]
) -> dict[nn.Parameter, dict[str, Any]]:
    """Return states for parameters not trained yet: the states after a step with zero gradients.

    They are empty if the optimizer keeps no state.
    """
    trial = copy.copy(optimizer)
    trial.state = defaultdict(dict)
    trial.param_groups = []
    stand_ins: dict[nn.Parameter, nn.Parameter] = {}
    for group in optimizer.param_groups:
        zeros = [nn.Parameter(torch.zeros_like(parameter)) for parameter in group["params"]]
        stand_ins |= zip(group["params"], zeros, strict=True)
        trial.param_groups.append(group | {"params": zeros})
    for parameter in missing:
        stand_ins[parameter].grad = torch.zeros_like(parameter)
    trial.step()
    states = {parameter: dict(trial.state.get(stand_ins[parameter], {})) for parameter in missing}
    tensors = [value for state in states.values() for value in state.values() if isinstance(value, torch.Tensor)]
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise ValueError("the state becomes NaN or infinite for a gradient of zero")
    return states


# The optimizer of an experiment: a built-in one or the user's own, its options, and its learning rate.
#
# A user's own optimizer is a class of torch or of another package, or a function of the parameters.

NETWORK_NAMES = ("network", "net", "model", "module")
"""A function whose first argument has one of these names is given the network, not its parameters."""
MOST_LABELS = 64
"""The most labels of a sample that count for the learning rate, because neighboring labels resemble each other."""
WRAPPED_METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
UNFUSED = {"foreach", "differentiable", "capturable", "dampening"}
"""Options with which torch's fused kernels are not used; with dampening, a momentum cannot begin at zero."""
_EAGER: dict[type[torch.optim.Optimizer], type[torch.optim.Optimizer]] = {}


def base_lr(training: Training, network: nn.Module | None = None, labels_per_sample: float = 1.0) -> float:
    """Return the learning rate before it is scaled with the workers: the given one, or the optimizer's default.

    To find the default of a user's own optimizer, it is created for the network, or for a single layer if there is no
    network. Muon's default grows with the labels of a step, up to `MOST_LABELS` per sample.
    """
    if training.lr is not None:
        return training.lr
    kind, traits = built_in_optimizer(training), training.optimizer_traits
    if kind is None:
        return _usual_rate(training, network)
    if traits.lr is None:
        return float(inspect.signature(kind).parameters["lr"].default)
    labels = training.samples_per_step * min(max(labels_per_sample, 1.0), MOST_LABELS)
    return traits.lr * (math.sqrt(labels / USUAL_BATCH) if traits.lr_grows_with_batch else 1)


def make_optimizer(training: Training, network: nn.Module, lr: float | None = None) -> torch.optim.Optimizer:
    """Return the experiment's optimizer for a network's parameters.

    `lr` replaces the experiment's own learning rate, for example when it is scaled up for several workers.
    """
    if next(network.parameters(), None) is None:
        raise ModelError("the model has no parameters to train; register them as nn.Parameter")
    if "lr" in training.optimizer_options:
        raise ExperimentError("training.optimizer_options: lr is not an option here; set training.lr")
    given = {key: tuple(v) if isinstance(v, list) else v for key, v in training.optimizer_options.items()}
    kind, traits = built_in_optimizer(training), training.optimizer_traits
    if kind is None:
        return _make_own_optimizer(training, network, given)
    options: dict[str, Any] = {"lr": lr or base_lr(training)}
    options |= {name: getattr(training, name) for name in traits.fields}
    takes_weight_decay = "weight_decay" in inspect.signature(kind).parameters
    if traits.has_weight_decay and (takes_weight_decay or training.weight_decay):
        options["weight_decay"] = training.weight_decay
    elif training.weight_decay:
        raise ExperimentError(
            f"training.weight_decay: {training.optimizer} does not support it; set it to 0 or use another optimizer"
        )
    if _has_fused_kernel(traits, network) and not given.keys() & UNFUSED:
        options["fused"] = True
    try:
        optimizer: Callable[..., torch.optim.Optimizer] = _eager(kind)
        return optimizer(network if traits.takes_network else list(network.parameters()), **options | given)
    except Exception as error:  # torch may raise anything for invalid options
        raise ExperimentError(f'training.optimizer = "{training.optimizer}" cannot be created: {error}') from None


def try_options(training: Training) -> None:
    """Raise ExperimentError for unknown or invalid options of the optimizer, before training starts.

    For a user's own optimizer, which may need the network, only the names of options are checked.
    """
    kind = built_in_optimizer(training)
    names = _argument_names(kind or _own_optimizer(training))
    for option in training.optimizer_options:
        if names and option not in names and "**" not in names:
            accepted = [name for name in names[1:] if name != "lr"]
            raise ExperimentError(
                f"training.optimizer_options: {training.optimizer} has no option '{option}'; "
                f"{suggest(option, accepted)}"
            )
    if kind is not None:
        _try_step(training)


def has_sparse_gradients(network: nn.Module) -> bool:
    return any(getattr(layer, "sparse", False) is True for layer in network.modules())


def built_in_optimizer(training: Training) -> type[torch.optim.Optimizer] | None:
    """Return the built-in optimizer that the experiment names; None if it has the user's own."""
    name = training.optimizer
    return OPTIMIZERS[name] if isinstance(name, str) and name in OPTIMIZERS else None


def _make_own_optimizer(training: Training, network: nn.Module, options: dict[str, Any]) -> torch.optim.Optimizer:
    """Return the user's own optimizer for a network's parameters, with these options.

    The learning rate is passed if it was given and the optimizer has one; later the schedule scales the learning rates
    of all parameter groups by the same factor.
    """
    make = _own_optimizer(training)
    if training.weight_decay:
        options["weight_decay"] = training.weight_decay
    names = _argument_names(make)
    if training.lr is not None and (not names or "lr" in names or "**" in names):
        options["lr"] = training.lr
    first = network if names and names[0] in NETWORK_NAMES else list(network.parameters())
    try:
        made = make(first, **options)
    except Exception as error:
        own = first is not network and not isinstance(make, type)
        hint = "; it is given a list of parameters, or the network if its argument is called network" if own else ""
        raise ExperimentError(
            f"training.optimizer = {training.optimizer} cannot be created: {type(error).__name__}: {error}{hint}"
            f"{user_frames(error)}"
        ) from error
    if isinstance(made, tuple | list):
        raise ExperimentError(
            f"training.optimizer = {training.optimizer} returned {len(made)} optimizers, but it must return one; use "
            "one optimizer with parameter groups, or (for a GAN) write the loop yourself with tenfold.average and "
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


def _usual_rate(training: Training, network: nn.Module | None = None) -> float:
    """Return the default learning rate of the user's own optimizer for this network."""
    try:
        made = make_optimizer(training, network or nn.Linear(2, 2))
        return float(made.param_groups[0]["lr"])
    except (ExperimentError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ExperimentError) and (network is not None or "pass it again" in str(error)):
            raise
        raise ExperimentError(
            f"the learning rate of training.optimizer = {training.optimizer} cannot be read; set training.lr ({error})"
        ) from error


def _own_optimizer(training: Training) -> Callable[..., Any]:
    """Return the class or function that makes the user's own optimizer."""
    given = training.optimizer
    if isinstance(given, UnrecordedObject):
        raise ExperimentError(f"the optimizer {given} was given as a Python object; pass it again")
    value = given.value if isinstance(given, PythonObject) else resolve(given, "optimizer")
    if not callable(value):
        raise ExperimentError(f"training.optimizer = {given} is a {type(value).__name__}, not an optimizer")
    return _eager(value) if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) else value


def _argument_names(make: Callable[..., Any]) -> list[str]:
    """Return the names of a callable's arguments, with "**" if it takes any; empty if they are unknown."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return []
    return ["**" if argument.kind is argument.VAR_KEYWORD else argument.name for argument in parameters]


def _try_step(training: Training) -> None:
    """Take two steps with a small network, because torch detects some values of the wrong type only then."""
    with RANDOM_LOCK, torch.random.fork_rng(devices=[]):
        network = nn.Linear(2, 2)
    optimizer = make_optimizer(training, network)

    def loss() -> float:
        value = network(torch.ones(1, 2)).square().sum()
        value.backward()
        return float(value.detach())

    loss()
    try:
        for _ in range(2):
            optimizer.step(loss)
    except (AssertionError, RuntimeError):  # perhaps due to the device: some options work on GPUs only
        return
    except Exception as error:  # torch may raise anything for invalid values
        if not training.optimizer_options:
            raise ExperimentError(f'training.optimizer = "{training.optimizer}" cannot step: {error}') from None
        given = ", ".join(f"{name} = {format_value(value)}" for name, value in training.optimizer_options.items())
        raise ExperimentError(
            f"training.optimizer_options: {training.optimizer} cannot step with {given}; one of these values has the "
            "wrong type"
        ) from None


def _eager(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of a built-in optimizer without torch's hooks for torch.compile; a user's class unchanged.

    torch wraps the methods of its optimizers so that the compiler skips them; the first call imports the compiler
    (torch._dynamo with sympy), which takes about a second. Tenfold never compiles an optimizer, so it calls the wrapped
    methods directly (`inspect.unwrap`). They compute the same.
    """
    if not kind.__module__.startswith(("torch.optim.", "tenfold.")):
        return kind
    if kind in _EAGER:
        return _EAGER[kind]
    members = {name: inspect.unwrap(getattr(kind, name)) for name in WRAPPED_METHODS}
    members["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    if kind is torch.optim.SGD:
        members["_init_group"] = _collect_momenta
    _EAGER[kind] = type(kind.__name__, (kind,), members | {"__doc__": kind.__doc__, "__module__": __name__})
    return _EAGER[kind]


def _collect_momenta(
    optimizer: torch.optim.SGD,
    group: dict[str, Any],
    parameters: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor | None],
) -> bool:
    """Collect the tensors for an SGD step, as torch does; momenta that start later than others start at zero.

    The fused kernel takes the momenta of all parameters or of none, but layers may be first used at different steps.
    """
    has_sparse = torch.optim.SGD._init_group(optimizer, group, parameters, gradients, momenta)  # type: ignore[no-untyped-call]
    missing = [place for place, momentum in enumerate(momenta) if momentum is None] if group["fused"] else []
    for place in missing if len(missing) < len(momenta) else ():
        momenta[place] = torch.zeros_like(gradients[place])
    return bool(has_sparse)


def _has_fused_kernel(traits: OptimizerTraits, network: nn.Module) -> bool:
    """Return whether torch has a single kernel that updates all parameters of this network."""
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
