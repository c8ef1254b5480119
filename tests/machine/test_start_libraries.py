import pytest
import torch
from torch import nn

from tenfold.machine.start_libraries import start_libraries


class Untouchable(nn.Sequential):
    def forward(self, x):
        raise AssertionError("the network was called")


@pytest.mark.parametrize("bf16", [False, True])
def test_libraries_are_started_without_the_network_and_without_random_numbers(bf16):
    network = Untouchable(nn.Conv2d(1, 2, 3), nn.Linear(8, 2))
    drawn, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        start_libraries(network, torch.device("cpu"), [4, 1])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.get_num_threads() == threads
    assert all(parameter.grad is None for parameter in network.parameters())
