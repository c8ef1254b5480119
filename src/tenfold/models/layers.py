"""What the built-in networks share: activations by name, and the block between two layers."""

from collections.abc import Callable, Iterator

from torch import nn

from tenfold.common.registry import Registry
from tenfold.errors import ModelError

ACTIVATIONS: Registry[Callable[[], nn.Module]] = Registry(
    "activation",
    {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "gelu": nn.GELU},
    ModelError,
)


def between(activation: str, normalise: nn.Module | None, dropout: float = 0.0) -> Iterator[nn.Module]:
    """Yield what follows a layer: normalization, the activation, dropout; each only if requested."""
    if normalise is not None:
        yield normalise
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
