"""What a worker notices of its model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tenfold
from tenfold.errors import ExperimentError, ModelError, TrainingError


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
    with pytest.raises(ModelError, match=r"linear\.weight"):
        tenfold.train(model=Replacing, data="digits", limit=64, batch_size=16, epochs=1, threads=1, runs=tmp_path)


def tagged(samples: int = 40, unlabeled: int = 0) -> tuple[Tensor, Tensor]:
    """Samples of five positions, some of which have no label."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(samples, 5, 4, generator=generator), torch.randint(0, 3, (samples, 5), generator=generator)
    y[:unlabeled] = -100
    return x, y


@pytest.mark.parametrize("engine", ["serial", "one-device"])
@pytest.mark.parametrize("unlabeled", [38, 20])
def test_a_batch_without_labels_is_named(tmp_path: Path, engine: str, unlabeled: int) -> None:
    """The mean over no labels is NaN, whatever the learning rate is."""
    tags = {"train": tagged(unlabeled=unlabeled), "test": tagged()}
    with pytest.raises(TrainingError, match="label"):
        tenfold.train(
            model=lambda: nn.Linear(4, 3), data=tags, batch_size=1, epochs=1, engine=engine, threads=1, runs=tmp_path
        )


@pytest.mark.parametrize(("engine", "workers"), [("serial", 1), ("processes", 2), ("one-device", 2)])
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


def hooked() -> nn.Module:
    """A network whose hooks change what it computes."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network.register_forward_hook(lambda module, inputs, outputs: outputs * 0.5)
    network[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    network.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 3,))
    return network


@pytest.mark.parametrize(("engine", "workers"), [("serial", 1), ("processes", 2), ("one-device", 2)])
def test_hooks_of_an_instance_survive_the_copy(tmp_path: Path, engine: str, workers: int) -> None:
    found = [
        tenfold.train(
            model=model,
            data="digits",
            limit=100,
            epochs=1,
            engine=engine,
            workers=workers,
            threads=1,
            oversubscribe=True,
            runs=tmp_path,
        ).weights
        for model in (hooked, hooked(), lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    ]
    assert torch.equal(found[0]["1.weight"], found[1]["1.weight"])
    assert not torch.equal(found[0]["1.weight"], found[2]["1.weight"])


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize(("engine", "workers"), [("serial", 1), ("processes", 2), ("one-device", 2)])
def test_hooks_of_parameters_are_not_lost_without_a_word(
    tmp_path: Path, engine: str, workers: int, register: str
) -> None:
    def make() -> nn.Module:
        network = hooked()
        getattr(network[1].weight, register)(lambda gradient: None)
        return network

    fields: dict[str, Any] = {"data": "digits", "limit": 100, "epochs": 1, "engine": engine, "workers": workers}
    fields |= {"threads": 1, "oversubscribe": True, "runs": tmp_path}
    with pytest.raises(ModelError, match="hooks"):
        tenfold.train(model=make(), **fields)
    with pytest.raises(ModelError, match="hooks"):
        tenfold.cross_validate(model=make(), folds=2, **fields | {"engine": "auto"})
    if engine == "one-device":
        with pytest.raises(ExperimentError, match="hooks"):
            tenfold.train(model=make, **fields)
