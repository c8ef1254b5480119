"""What a worker notices of its model."""

from pathlib import Path

import pytest
from torch import Tensor, nn

import tenfold
from tenfold.errors import ModelError


class Replacing(nn.Module):
    """Puts another parameter in the place of its weights in the second step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.steps = nn.Linear(64, 10), 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training
        if self.steps == 2:
            self.linear.weight = nn.Parameter(self.linear.weight.detach().clone())
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]


def test_a_model_that_replaces_a_parameter_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has replaced its parameter linear.weight by step 4, .* in place"):
        tenfold.train(model=Replacing, data="digits", limit=64, batch_size=16, epochs=1, threads=1, runs=tmp_path)
