"""Errors in the user's own code keep the user's lines, and no others."""

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from looped import looped
from torch import Tensor, nn
from typer.testing import CliRunner

import tenfold
from tenfold.cli import app
from tenfold.errors import ModelError, UserCodeError
from tenfold.runs.events import EpochEnded

pytestmark = pytest.mark.usefixtures("_warm_server", "_in_a_folder_of_its_own")
X = torch.randn(96, 5, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([1.0, -2.0, 0.5, 0.0, 1.0])
BASE = {"data": (X, Y), "epochs": 2, "batch_size": 16, "model": lambda: nn.Linear(5, 1)}
LINES = re.compile(r'^  File "([^"]+)", line (\d+), in (\w+)$', re.MULTILINE)


def files(text: str) -> set[str]:
    return {Path(name).name for name, _, _ in LINES.findall(text)}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_custom_loss_trains_the_same_model_as_the_built_in_one(workers: int) -> None:
    found = [
        tenfold.train(**BASE, workers=workers, loss=loss, metrics=["rmse", root], lr=0.05)
        for loss in ("mse", nn.MSELoss(), lambda outputs, targets: ((outputs - targets) ** 2).mean())
    ]
    for run in found:
        assert run.metrics == pytest.approx(found[0].metrics)
        assert run.metrics["root"] == pytest.approx(run.metrics["rmse"])
        assert torch.allclose(run.weights["weight"], found[0].weights["weight"])


def root(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean().sqrt()


def failing_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.reshape(7, 3) - targets


class Sleepy(nn.Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        if self.calls > 2:
            raise LookupError("asleep")
        return super().forward(x)


def broken_metric(outputs: Tensor, targets: Tensor) -> Tensor:
    return {}["missing"]


@pytest.mark.parametrize("workers", [1, 2])
class TestInPython:
    def test_the_first_batch(self, workers: int) -> None:
        with pytest.raises(ModelError) as caught:
            tenfold.train(**BASE, workers=workers, loss=failing_loss)
        first, _, rest = str(caught.value).partition("\n")
        assert "failed on its first batch, inputs (16, 5) float32" in first
        assert "the loss failing_loss was given outputs of shape (16,) and targets of shape (16,)" in first
        assert files(rest) == {"test_user_errors.py"}
        assert "return outputs.reshape(7, 3) - targets" in rest
        assert tenfold.open_run().error == str(caught.value)

    def test_a_metric(self, workers: int) -> None:
        with pytest.raises(ModelError, match="KeyError") as caught:
            tenfold.train(**BASE, workers=workers, metrics=broken_metric)
        assert files(str(caught.value)) == {"test_user_errors.py"}
        assert not epochs_trained(tenfold.open_run())


def epochs_trained(run: tenfold.Run) -> int:
    return len([event for event in run.events("metric") if event.name == "epoch_loss"])


def patient(outputs: Tensor, targets: Tensor) -> float:
    assert len(targets) > 100, "too few samples"
    return 0.5


class Counting(nn.Module):
    calls = 0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return torch.rand(3) > 0.5


def test_a_metric_is_tried_without_a_trace() -> None:
    counting, large = Counting(), (X.repeat(10, 1), Y.repeat(10))
    run = tenfold.train(**BASE | {"data": large}, metrics={"patient": patient, "counting": counting})
    assert run.metrics["patient"] == 0.5
    assert counting.calls == len(run.history) + 1  # after each epoch, and at the end
    plain = tenfold.train(**BASE | {"data": large})
    assert torch.equal(run.weights["weight"], plain.weights["weight"])


def test_metrics_whose_outputs_do_not_fit_are_refused_after_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenfold.training.evaluation.free_memory", lambda: 100)
    heard: list[Any] = []
    with pytest.raises(ModelError, match="roc_auc_ovr"):
        tenfold.train(model="mlp", data="digits", epochs=1, metrics=["roc_auc_ovr"], listen=heard.append)
    assert not any(isinstance(event, EpochEnded) for event in heard)


class Positions(nn.Module):
    """A recurrent network whose outputs begin with the positions, not with the samples."""

    def __init__(self, *, several: bool) -> None:
        super().__init__()
        self.embedding, self.cell, self.last = nn.Embedding(7, 4), nn.RNN(4, 4), nn.Linear(4, 7)
        self.several = several

    def forward(self, tokens: Tensor) -> Any:
        outputs, state = self.cell(self.embedding(tokens.T))
        outputs = self.last(outputs)
        return (outputs, state) if self.several else outputs


@pytest.mark.parametrize("several", [False, True])
def test_outputs_that_do_not_begin_with_the_samples_are_found_after_the_first_step(*, several: bool) -> None:
    tokens = torch.arange(960).reshape(240, 4) % 7

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        found = outputs[0] if several else outputs
        return nn.functional.cross_entropy(found.flatten(0, 1), targets.T.flatten())

    def share(outputs: Any, targets: Tensor) -> float:
        return 0.5

    with pytest.raises(ModelError, match="batch_first"):
        tenfold.train(
            model=Positions(several=several), data=(tokens, tokens), loss=loss, metrics=share, batch_size=4, epochs=1
        )
    assert tenfold.open_run().history == []


def test_a_later_batch_with_several_workers() -> None:
    with pytest.raises(UserCodeError, match=r"^worker \d: LookupError: asleep\n") as caught:
        tenfold.train(**BASE | {"model": lambda: Sleepy(5, 1)}, workers=2)
    assert files(str(caught.value)) == {"test_user_errors.py"}


def test_a_later_batch_with_one_worker() -> None:
    Sleepy.calls = 0
    with pytest.raises(LookupError):
        tenfold.train(**BASE | {"model": lambda: Sleepy(5, 1)})
    error = tenfold.open_run().error
    assert error.startswith("LookupError: asleep\n")
    assert files(error) == {"test_user_errors.py"}


USERS = """
import torch
from torch import nn

class Net(nn.Linear):
    calls = 0
    def forward(self, x):
        Net.calls += 1
        if Net.calls > AFTER:
            return x.undefined
        return super().forward(x)

def network():
    return Net(5, 2)

def data():
    x = torch.randn(96, 5)
    return x, (x[:, 0] > 0).long()

def broken():
    return 1 / 0

def leaving():
    raise SystemExit(5)
"""


def test_code_that_ends_the_program_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_leave.py").write_text(USERS.replace("AFTER", "0"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = CliRunner().invoke(app, ["train", "--model", "mlp", "--data", "users_leave:leaving", "--epochs", "1"])
    assert said.exit_code == 1
    assert "error: SystemExit: 5" in said.stderr
    assert files(said.stderr) == {"users_leave.py"}


@pytest.mark.parametrize(("after", "data"), [(0, "data"), (2, "data"), (0, "broken")])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, data: str, workers: str
) -> None:
    name = f"users_{after}_{data}_{workers}"
    (tmp_path / f"{name}.py").write_text(USERS.replace("AFTER", str(after)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["train", "--model", f"{name}:network", "--data", f"{name}:{data}", "--workers", workers, "--epochs", "1"]
    said = CliRunner().invoke(app, [*command, "--set", "batch_size=16"])
    assert said.exit_code in (1, 2)
    assert "error: " in said.stderr
    assert files(said.stderr) == {f"{name}.py"}
    assert ("return 1 / 0" if data == "broken" else "return x.undefined") in said.stderr
    assert said.stderr.count("error: ") == 1
    if data == "data":
        shown = CliRunner().invoke(app, ["show", "last"])
        assert f"{name}.py" in shown.stdout.replace("\n", "")
        assert "return x.undefined" in shown.stdout


@pytest.mark.parametrize(
    ("outputs", "labels", "hint"),
    [
        (
            1,
            2,
            "bce",
        ),
        (2, 3, "labels from 0 to 2 need 3 outputs of the network, which has 2"),
    ],
)
def test_too_few_outputs_for_the_classes(outputs: int, labels: int, hint: str) -> None:
    with pytest.raises(ModelError, match=re.escape(hint)):
        tenfold.train(model=lambda: nn.Linear(5, outputs), data=(X, torch.arange(96) % labels), epochs=1)


@looped(
    ("loss", "hint"),
    [
        (lambda outputs, targets: (outputs.argmax(1) != targets).float().mean(), "the loss has no gradient"),
        (lambda outputs, targets: (outputs - targets) ** 2, "it should return one, such as their mean"),
        (lambda outputs, _: float(outputs.mean()), "tensor"),
    ],
)
def test_a_loss_without_a_gradient(loss: Callable[..., Any], hint: str) -> None:
    with pytest.raises(ModelError, match=hint):
        tenfold.train(model=nn.Linear(5, 1), data=(X, Y), loss=loss, epochs=1)


def test_a_softmax_at_the_end_is_noticed() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 2), nn.Softmax(1))

    with pytest.warns(UserWarning, match="probabilities"):
        tenfold.train(model=network, data=(X, (Y > 0).long()), epochs=1)


def test_a_traceback_ends_at_the_users_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError) as caught:
        tenfold.train(**BASE | {"model": lambda: nn.Linear(4, 1)})
    assert [entry.path.name for entry in caught.traceback] == ["test_user_errors.py", "experiment.py"]
    assert isinstance(caught.value.__context__, RuntimeError)
    assert "direct cause" not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setenv("TENFOLD_TRACEBACK", "full")
    with pytest.raises(ModelError) as caught:
        tenfold.train(**BASE | {"model": lambda: nn.Linear(4, 1)})
    assert "worker.py" in [entry.path.name for entry in caught.traceback]
