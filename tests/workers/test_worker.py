"""What a worker notices of its model."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tenfold
from tenfold.errors import ModelError, TrainingError


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


def tagged(samples: int = 40, unlabeled: int = 0) -> tuple[Tensor, Tensor]:
    """Samples of five positions, some of which have no label."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(samples, 5, 4, generator=generator), torch.randint(0, 3, (samples, 5), generator=generator)
    y[:unlabeled] = -100
    return x, y


@pytest.mark.parametrize("engine", ["serial", "fused"])
@pytest.mark.parametrize("unlabeled", [38, 20])
def test_a_batch_without_labels_is_named(tmp_path: Path, engine: str, unlabeled: int) -> None:
    """The mean over no labels is NaN, whatever the learning rate is."""
    tags = {"train": tagged(unlabeled=unlabeled), "test": tagged()}
    with pytest.raises(TrainingError, match="label"):
        tenfold.train(
            model=lambda: nn.Linear(4, 3), data=tags, batch_size=1, epochs=1, engine=engine, threads=1, runs=tmp_path
        )


@pytest.mark.parametrize(("engine", "workers"), [("serial", 1), ("processes", 2), ("fused", 2)])
@pytest.mark.parametrize("batch_size", [8, 13])
def test_a_summed_loss_has_one_scale(tmp_path: Path, engine: str, workers: int, batch_size: int) -> None:
    """It is reported per sample, on the training part and on the test part, however large batches and parts are."""
    x, y = torch.randn(60, 4), torch.randn(60, 2)
    run = tenfold.train(
        model=Still,
        data={"train": (x, y), "test": (x[:20], y[:20])},
        loss=nn.MSELoss(reduction="sum"),
        optimizer="sgd",
        lr=1e-12,
        batch_size=batch_size,
        epochs=1,
        engine=engine,
        workers=workers,
        threads=1,
        oversubscribe=True,
        runs=tmp_path,
    )
    errors = y.square().sum(1)
    assert run.history[-1]["train_loss"] == pytest.approx(float(errors.mean()), rel=1e-4)
    assert run.history[-1]["test_loss"] == pytest.approx(float(errors[:20].mean()), rel=1e-4)


class Still(nn.Module):
    """Returns zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)  # type: ignore[no-any-return]
