"""Outputs in the shape of their targets, so that no loss or metric broadcasts (n, 1) against (n,) to (n, n)."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tenfold.errors import ModelError, TenfoldError


class AlignedMeasure:
    """A loss or a metric that is given outputs in the shape of the targets, where the two differ only by ones."""

    def __init__(self, function: Callable[[Any, Any], Any], name: str) -> None:
        self.function = function
        self.name = name
        """How errors name it: "the loss mse"."""

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """Return the loss or metric; an error notes the shapes that it was given."""
        outputs = align(outputs, targets, self.name)
        try:
            return self.function(outputs, targets)
        except Exception as error:
            if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
                shapes = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}"
                error.add_note(f"{self.name} was given {shapes}")
            raise

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AlignedMeasure) and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.function)


def align(outputs: Any, targets: Any, name: str) -> Any:
    """Return outputs of shape (n, 1) as (n,) where the targets are, and the reverse; other outputs as they are."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.shape == targets.shape:
        return outputs
    if not outputs.ndim or not targets.ndim or len(outputs) != len(targets):
        raise ModelError(
            f"{name} cannot compare outputs of shape {tuple(outputs.shape)} with targets of shape "
            f"{tuple(targets.shape)}; both should begin with the number of samples"
        )
    if _without_ones(outputs) == _without_ones(targets):
        return outputs.reshape(targets.shape)
    return outputs


def require_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise a ModelError unless there is one output for each target."""
    if outputs.shape != targets.shape:
        raise ModelError(
            f"outputs have shape {tuple(outputs.shape)} but targets {tuple(targets.shape)}; this loss or metric needs "
            "one output for each target"
        )


def describe_failure(error: BaseException) -> str:
    """Return an error as "ValueError: what was wrong", with the shapes that a loss or a metric was given."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return str(error) if isinstance(error, TenfoldError) else f"{type(error).__name__}: {error}{notes}"


def _without_ones(tensor: Tensor) -> tuple[int, ...]:
    return tuple(size for size in tensor.shape[1:] if size != 1)
