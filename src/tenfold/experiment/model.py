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
    """A built-in model (lenet5, cnn, mlp, recommender), "package.module:callable", a network, or a
    callable that returns one."""
    hidden: Annotated[tuple[Count, ...] | None, AsTuple] = None
    """Widths of the mlp's hidden layers, such as [128, 64]. Default: [128]."""
    activation: Literal["relu", "sigmoid", "tanh", "gelu"] | None = None
    """The function between layers. Default: relu."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Probability of dropping a unit while training. Default: 0."""
    batchnorm: bool | None = None
    """Whether to use batch normalization between layers. Default: false."""
    options: Options = {}
    """Further keyword arguments of your own callable."""

    _known = field_validator("name")(lambda name: check_name(name, "model", MODELS))
