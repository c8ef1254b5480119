"""What can go wrong with the user's model while it trains, said in a sentence."""

from typing import Any

from torch import Tensor

from tenfold.common.user_code import user_frames
from tenfold.errors import ModelError
from tenfold.training import Replica
from tenfold.training.measures import describe_failure
from tenfold.workers.task import Task


def explain_failure(task: Task, replica: Replica, x: Any, y: Any, error: Exception) -> ModelError | None:
    """Return the error that says which batch the model failed on; None if a later batch failed in the user's code.

    That error speaks for itself, where the first batch may show that the model does not fit the data.
    """
    first = replica.steps <= 1
    if not first and user_frames(error):
        return None
    if not any(parameter.requires_grad for parameter in replica.network.parameters()):
        error.add_note("none of the model's parameters requires a gradient, so that nothing can be trained")
    name, batch = task.experiment.model.name, "its first batch" if first else "a later batch"
    x, y = replica.batch(x, y)
    return ModelError(
        f"model {name} failed on {batch}, inputs {_described(x)} and targets {_described(y)}: "
        f"{describe_failure(error)}{user_frames(error)}"
    )


def check_parameters(task: Task, replica: Replica, step: int) -> None:
    """Raise an error if the model has replaced a parameter: neither the optimizer nor a round would know it."""
    memory = task.workers > 1 or task.experiment.training.ema is not None
    if name := replica.flat.find_replaced(replica.network, memory=memory):
        raise ModelError(
            f"model {task.experiment.model.name} has replaced its parameter {name} by step {step}, so that "
            "training would continue without it; change it in place: with torch.no_grad(): parameter.copy_(...)"
        )


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_described(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_described, value)) + ")"
    return (
        f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        if isinstance(value, Tensor)
        else str(type(value))
    )
