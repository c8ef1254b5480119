"""Recomputed activations: the same gradients, running statistics and random numbers, with less in memory."""

import copy

import pytest
import torch
from torch import nn

import tenfold
from tenfold.errors import ExperimentError, ModelError
from tenfold.models.activation_checkpointing import checkpoint_activations, find_blocks


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Tanh())

    def forward(self, x, *, scale=1.0):
        return x + scale * self.layers(x)


class Residual(nn.Module):
    def __init__(self, outputs=10):
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(64, 16))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(16, outputs)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.last(x)


def kept_bytes(network):
    """Return how many bytes the forward pass keeps for the backward pass, apart from parameters."""
    kept, parameters = {}, {parameter.data_ptr() for parameter in network.parameters()}

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(torch.randn(32, 64)).sum()
    return sum(kept.values())


@pytest.mark.parametrize("chosen", [True, ["blocks"], ["blocks.*"], ["blocks.1", "blocks.1.layers"]], ids=str)
def test_a_step_is_the_same_and_keeps_less(chosen):
    torch.manual_seed(0)
    plain = Residual()
    again = copy.deepcopy(plain)
    checkpoint_activations(again, chosen)
    names = list(plain.state_dict())
    assert list(again.state_dict()) == names
    again = copy.deepcopy(again)  # as the stacked replicas are
    x = torch.randn(8, 64)
    for network in (plain, again):
        torch.manual_seed(1)
        network(x).square().mean().backward()
        network.noise = torch.rand(1)
    assert torch.equal(plain.noise, again.noise)
    for name in names:
        assert torch.equal(plain.state_dict()[name], again.state_dict()[name]), name
    for item, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(item.grad, other.grad)
    assert kept_bytes(again) < 0.9 * kept_bytes(plain)


def test_blocks_are_the_outermost_members_with_several_layers():
    network = nn.Sequential(nn.Sequential(Block(), Block()), nn.ModuleList([nn.ModuleList([Block(), nn.ReLU()])]))
    assert find_blocks(network) == [network[0], network[1][0][0]]


def test_what_is_no_block_is_refused():
    network = Residual()
    with pytest.raises(ModelError, match="blocks"):
        checkpoint_activations(network, ["block"])
    network.blocks = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(ModelError, match="first"):
        checkpoint_activations(network, True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fields", [{}, {"accumulate": 2, "precision": "bf16"}], ids=str)
def test_training_ends_with_the_same_weights(tmp_path, fields):
    options = {"model": Residual, "data": "digits", "limit": 120, "epochs": 1, "threads": 1, "runs": tmp_path, **fields}
    plain, again = (tenfold.train(**options, activation_checkpointing=on) for on in (False, True))
    for name, tensor in plain.weights.items():
        assert torch.equal(tensor, again.weights[name]), name


def test_folds_that_train_together_refuse_it(tmp_path):
    options = {"model": Residual, "data": "digits", "limit": 60, "epochs": 1, "folds": 2, "fold_mode": "stacked"}
    with pytest.raises(ExperimentError, match="activation_checkpointing"):
        tenfold.cross_validate(**options, activation_checkpointing=True, runs=tmp_path)
