"""An exchange: what one worker of an asynchronous strategy sends and receives, and with whom."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CENTRE = -1
"""Stands for the common copy of the weights where a rank stands for a worker."""


@dataclass(frozen=True)
class Exchange:
    """What a worker does after one of its steps."""

    partner: int = CENTRE
    """The rank of the other worker, or CENTRE."""
    sends: bool = True
    """Weights or gradients go to the partner."""
    receives: bool = True
    """Weights come back."""


@dataclass(frozen=True)
class ExchangeVectors:
    """The vectors that an exchange reads and changes in place, all of the size of the parameters."""

    mine: "Tensor"
    """The parameters of the worker that exchanges."""
    theirs: "Tensor"
    """The parameters of its partner, or of the centre."""
    gradients: "Tensor"
    """The sum of the worker's gradients since it last sent; empty unless the strategy sends gradients."""
    centre_state: "Tensor"
    """What the centre keeps between exchanges in addition to its parameters, at first 0; empty without a centre."""
