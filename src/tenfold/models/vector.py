"""The smallest network with a given number of weights, for calibration: nearly all of its time goes into rounds.

It is defined here because worker processes import the models.
"""

import torch
from torch import Tensor, nn


class Vector(nn.Module):
    """Predicts the mean of its weights, whatever it is shown; a step reads and writes each weight, as any step does."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(numel))

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each sample."""
        return self.weights.mean().expand(len(x), 1)
