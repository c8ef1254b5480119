"""What to do with the models of all folds: average their weights, or let them vote."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tenfold.experiment import Training
from tenfold.mixing.round import exact_round
from tenfold.training import FlatState
from tenfold.transport.average import average_in_rank_order, shares

Voice = Literal["classes", "logit", "numbers"]


def average(network: nn.Module, weights: Sequence[dict[str, Any]], samples: Sequence[int]) -> dict[str, Any]:
    """Return the mean of the models' weights, each counted by the samples it learnt from.

    As in any round the whole state is averaged: of batch normalisation mean = avg(mean_i) and
    var = avg(var_i) + var(mean_i). The network is any of the same architecture; it is left with the mean.
    """
    network.load_state_dict(weights[0])
    flat = FlatState(network)
    vectors = []
    for one in weights:
        network.load_state_dict(one)
        flat.to_moments()
        vectors.append(flat.vector.clone())
    counts = shares(exact_round(len(weights)), [float(count) for count in samples], 0)
    average_in_rank_order(vectors, counts, flat.vector)
    flat.to_variances(alike=False)
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def voice(training: Training, classes: int | None) -> Voice:
    """Return what the outputs of the experiment's networks are: logits of classes, one logit, or plain numbers."""
    if training.loss == "bce":
        return "logit"
    return "classes" if classes is not None and training.loss not in ("mse", "l1") else "numbers"


def combined(outputs: Sequence[Tensor], voice: Voice) -> Tensor:
    """Return what several models say together, in the form in which one of them would say it.

    Models vote with their probabilities: of the mean of these the logarithm is returned, whose largest entry is the
    winner, or for a single logit the logit. Numbers are simply averaged.
    """
    stacked = torch.stack(list(outputs))
    if voice == "classes":
        return stacked.log_softmax(-1).logsumexp(0) - math.log(len(stacked))
    if voice == "logit":
        return torch.logit(stacked.sigmoid().mean(0), eps=1e-7)
    return stacked.mean(0)


class Vote(nn.Module):
    """Several networks as one: their probabilities, or numbers, are averaged."""

    def __init__(self, networks: Sequence[nn.Module], voice: Voice) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.voice = voice

    def forward(self, x: Any) -> Tensor:
        """Return what the networks say together."""
        return combined([network(x) for network in self.networks], self.voice)
