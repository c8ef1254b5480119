"""A network that scores candidates, from features of the sample and of each candidate."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tenfold.errors import ModelError
from tenfold.models.layers import between

PAIR_FEATURES = 4
"""Inputs for each candidate."""


class Recommender(nn.Module):
    """score_j = (W x + b)_j + v p_j, then + g(p_j, score_j) with a small network g that all candidates share.

    x are the first inputs of a sample, p_j the four inputs that it has for candidate j; the last 4 x candidates inputs
    are one block for each of the four.
    """

    def __init__(self, inputs: int, candidates: int, hidden: Sequence[int], activation: str, dropout: float) -> None:
        super().__init__()
        self.candidates = candidates
        self.dropout = nn.Dropout(dropout)
        self.own = nn.Linear(inputs, candidates)
        self.pair = nn.Linear(PAIR_FEATURES, 1, bias=False)
        layers: list[nn.Module] = []
        width = PAIR_FEATURES + 1
        for units in hidden:
            layers += [nn.Linear(width, units), *between(activation, None)]
            width = units
        last = nn.Linear(width, 1)
        self.shared = nn.Sequential(*layers, last)
        for start in (self.own.weight, self.pair.weight, last.weight):
            nn.init.zeros_(start)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each candidate."""
        own, pairs = x[:, : -PAIR_FEATURES * self.candidates], x[:, -PAIR_FEATURES * self.candidates :]
        pairs = pairs.reshape(len(x), PAIR_FEATURES, self.candidates).transpose(1, 2)
        scores = self.own(self.dropout(own)) + self.pair(pairs).squeeze(-1)
        shared = self.shared(torch.cat([pairs, scores.unsqueeze(-1)], dim=-1)).squeeze(-1)
        return torch.add(scores, shared)


def recommender(
    shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Sequence[int] = (16,),
    activation: str = "relu",
    dropout: float = 0.2,
) -> nn.Module:
    """Return a network for samples that hold four inputs for each of the outputs, after some of their own."""
    inputs = shape[0] - PAIR_FEATURES * outputs if len(shape) == 1 else 0
    if inputs < 1:
        raise ModelError(
            f"the recommender takes samples of some inputs and {PAIR_FEATURES} more for each of the {outputs} "
            f'candidates, but a sample here has shape {shape}; data = "tweets" with pairs gives such samples'
        )
    return Recommender(inputs, outputs, hidden, activation, dropout)
