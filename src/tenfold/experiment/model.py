"""Section [model]: the network."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from tenfold.common.catalog import MODELS
from tenfold.experiment.python_objects import NameOrObject, check_name
from tenfold.experiment.section import Section
from tenfold.experiment.values import AsTuple, Count, Options


class Model(Section):
    """The network that every replica trains."""

    name: NameOrObject = "lenet5"
    """A built-in network (lenet5, cnn, mlp), "package.module:callable", or a callable that returns an nn.Module."""
    hidden: Annotated[tuple[Count, ...] | None, AsTuple] = None
    """Widths of the mlp's hidden layers, such as [128, 64]. Unset: the network's own."""
    activation: Literal["relu", "sigmoid", "tanh", "gelu"] | None = None
    """The function between layers. Unset: the network's own (relu)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Probability of dropping a unit while training. Unset: the network's own (0)."""
    batchnorm: bool | None = None
    """Whether to normalise batches between layers. Unset: the network's own (no)."""
    options: Options = {}
    """Further keyword arguments for a callable of your own."""

    _known = field_validator("name")(lambda name: check_name(name, "model", MODELS))
