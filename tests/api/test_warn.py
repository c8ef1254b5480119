"""How warnings of a run reach a caller without a listener."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from command_line import tenfold_
from torch import nn

import tenfold
from tenfold.api.train import warn
from tenfold.runs.events import Warned
from tenfold.training import choose_loss
from tenfold.workers.task import Task, describe_untrained_loss


@pytest.mark.parametrize("rank", [0, 1])
def test_a_warning_names_its_worker(rank: int) -> None:
    with pytest.warns(UserWarning, match=rf"^worker {rank}: odd$"):
        warn(Warned(at=0.0, text="odd", worker=rank, concerns_worker=True))


def test_a_warning_about_the_run_names_none_but_the_line_of_the_users_code() -> None:
    with pytest.warns(UserWarning, match="^odd$") as caught:
        warn(Warned(at=0.0, text="odd"))
    assert caught[0].filename == __file__


def warnings_of(run: tenfold.Run) -> list[str]:
    return [event.text for event in run.events() if isinstance(event, Warned)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"epochs": 9}, True),
        ({"epochs": 10}, False),
        ({"epochs": 4, "batch_size": 8}, False),
        ({"epochs": 1, "optimizer": "lbfgs"}, False),
    ],
)
def test_a_run_of_very_few_steps_is_warned_of(tmp_path: Path, fields: dict[str, Any], warned: bool) -> None:
    data = torch.randn(40, 3), torch.arange(40) % 2
    run = tenfold.train(model="mlp", data=data, runs=tmp_path, **fields)
    assert any("too few to learn" in text for text in warnings_of(run)) is warned


def test_a_loss_with_parameters_that_nothing_trains_is_warned_of() -> None:
    def warning(loss: nn.Module) -> str:
        training = tenfold.Experiment(loss=loss).training
        return describe_untrained_loss(cast(Task, SimpleNamespace(loss=choose_loss(training, 2))))

    assert "not trained" in warning(nn.Sequential(nn.Linear(2, 2)))
    assert not warning(nn.Sequential(nn.Linear(2, 2)).requires_grad_(False))
    assert not warning(nn.CrossEntropyLoss(weight=torch.ones(2)))


@pytest.mark.timeout(60)
def test_several_workers_with_lbfgs_are_warned_of(tmp_path: Path) -> None:
    fields = {"model": "mlp", "data": "digits", "limit": 200, "workers": 2, "optimizer": "lbfgs", "epochs": 1}
    with pytest.warns(UserWarning, match="lbfgs with 2 workers"):
        tenfold.train(**fields, threads=1, oversubscribe=True, runs=tmp_path)
    sets = [f"--set={name}={value}" for name, value in fields.items()]
    said = tenfold_("train", *sets, "--set=oversubscribe=true", "--runs", str(tmp_path))
    assert "lbfgs with 2 workers" in " ".join(said.stderr.split())


class Tagger(nn.Module):
    """Puts out a logit for each class at each position, the classes last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


SMALL: dict[str, Any] = {"epochs": 1, "threads": 1, "oversubscribe": True}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fields", [{}, {"engine": "one-device", "workers": 2}], ids=["serial", "stacked"])
def test_as_many_positions_as_classes_are_warned_of(tmp_path: Path, fields: dict[str, Any]) -> None:
    for positions, unclear in ((4, True), (5, False)):
        data = torch.randn(40, positions, 3), torch.arange(40 * positions).reshape(40, positions) % 4
        run = tenfold.train(model=Tagger, data=data, runs=tmp_path, **SMALL, **fields)
        assert any("as many positions as classes" in text for text in warnings_of(run)) is unclear


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "targets",
    [torch.full((40,), 3), torch.full((40, 2), 3), torch.full((40,), 0.5)],
    ids=["labels", "positions", "numbers"],
)
def test_targets_that_are_all_the_same_are_warned_of(tmp_path: Path, targets: torch.Tensor) -> None:
    def network() -> nn.Module:
        return nn.Linear(3, 4) if targets.ndim == 1 else nn.Sequential(nn.Linear(3, 8), nn.Unflatten(1, (4, 2)))

    model = "mlp" if targets.is_floating_point() else network
    run = tenfold.train(model=model, data=(torch.randn(40, 3), targets), runs=tmp_path, **SMALL)
    assert any("nothing to tell apart" in text for text in warnings_of(run))
