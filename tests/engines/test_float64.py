"""Networks in float64: nothing on the way from the data to the weights rounds to float32.

The judge is a plain PyTorch loop in float64; float32 anywhere would differ from it by 1e-8 or more.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_models import PLAIN, same, train
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import tenfold
from tenfold.errors import ModelError

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore:the whole run has")]
SAMPLES, EPOCHS, ROUNDING = 60, 4, 1e-14
GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((SAMPLES, 5))
Y = np.tanh(X @ GENERATOR.standard_normal((5, 1)))
FULL_BATCH = PLAIN | {"epochs": EPOCHS, "batch_size": SAMPLES, "lr": 0.2, "momentum": 0.9}


class Network(nn.Module):
    """A network of the user's, which is made in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float64
        return self.layers(x)  # type: ignore[no-any-return]


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> Any:
        return X[number], Y[number]


def by_hand(start: nn.Module, x: np.ndarray[Any, Any] = X) -> dict[str, Tensor]:
    inputs, targets = torch.from_numpy(x), torch.from_numpy(Y)
    descent = torch.optim.SGD(start.parameters(), lr=0.2, momentum=0.9)
    for _ in range(EPOCHS):
        descent.zero_grad()
        functional.mse_loss(start(inputs), targets).backward()
        descent.step()
    return dict(start.state_dict())


def assert_exact(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=10 * ROUNDING, atol=ROUNDING)


WAYS: dict[str, dict[str, Any]] = {
    "serial": {},
    "in pieces": {"accumulate": 3},
    "processes": {"workers": 2},
    "gradients": {"workers": 2, "average": "gradients"},
    "one device": {"workers": 3, "engine": "one-device"},
    "virtual": {"workers": 4, "engine": "virtual", "average": "gradients"},
}


@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_of_a_loop_in_float64(way: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Network()
    run = train(model=network, data={"train": (X, Y), "test": (X, Y)}, runs=tmp_path, **FULL_BATCH | WAYS[way])
    assert_exact(run.weights, by_hand(network))
    with torch.no_grad():
        expected = network(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(run.predict(X).reshape(-1, 1), expected, atol=10 * ROUNDING)
    assert run.metrics["loss"] == pytest.approx(np.square(expected - Y).mean(), rel=1e-13)
    assert run.evaluate(data=(X, Y))["loss"] == run.metrics["loss"]


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "muon", "sync_every": 2, "optimizer_state": "average", "compression": "int8"},
        {"optimizer": "adamw", "strategy": "easgd", "sync_every": 2},
    ],
)
def test_twins_have_the_same_bits(fields: dict[str, Any], tmp_path: Path) -> None:
    fields = PLAIN | {"model": "mlp", "data": (X, Y), "epochs": 2, "batch_size": 8, "precision": "fp64"} | fields
    cluster = {"groups": [{"count": 2, "step_seconds": 0.01}]}
    where: tuple[dict[str, Any], ...] = ({"engine": "processes"}, {"engine": "virtual", "cluster": cluster})
    runs = [train(**fields, **engine, workers=2, runs=tmp_path) for engine in where]
    assert {tensor.dtype for tensor in runs[0].weights.values()} == {torch.float64}
    assert same(runs[0].weights, runs[1].weights) or fields["strategy"] == "easgd"  # whose exchanges race


def test_data_of_every_kind_keep_their_digits(tmp_path: Path) -> None:
    """uint8 is divided in float64; samples of a Dataset are not rounded; the columns of a table differ far behind."""
    pixels = GENERATOR.integers(0, 256, (SAMPLES, 5), dtype=np.uint8)
    torch.manual_seed(0)
    run = train(model=Network, data={"train": (pixels, Y), "test": (pixels, Y)}, runs=tmp_path, **FULL_BATCH)
    torch.manual_seed(0)
    assert_exact(run.weights, by_hand(Network(), pixels / 255))
    run = train(model=Network, data=(Samples(), Samples()), runs=tmp_path, **FULL_BATCH)
    torch.manual_seed(0)
    assert_exact(run.weights, by_hand(Network()))
    late = 1.7e9 + np.arange(SAMPLES)
    table = tmp_path / "late.csv"
    table.write_text("time,price\n" + "\n".join(f"{time},{2 * time}" for time in late))
    fields = {"model": "mlp", "data": str(table), "target_column": "price", "precision": "fp64"}
    run = train(epochs=1, batch_size=10, runs=tmp_path, **fields)
    assert run.metadata["data"]["loss_unit"] == pytest.approx(2 * np.std(late), rel=0.2)
    predicted = tenfold.open_run(run.id, runs=tmp_path).predict({"time": late})
    assert len(np.unique(predicted)) == SAMPLES


def test_an_interrupted_run_is_resumed_and_exported_in_float64(tmp_path: Path) -> None:
    fields = PLAIN | {"model": "mlp", "data": (X, Y), "precision": "fp64", "batch_size": 10, "epochs": 3}
    whole = train(**fields, runs=tmp_path)

    def interrupt(event: Any) -> None:
        if getattr(event, "epoch", 0) >= 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(**fields, runs=tmp_path, listen=interrupt)
    resumed = tenfold.resume(2, runs=tmp_path, data=(X, Y))
    assert same(resumed.weights, whole.weights)
    from tenfold.api.predict import export_program

    export_program(resumed, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    outputs = program(torch.from_numpy(X))
    assert outputs.dtype == torch.float64
    np.testing.assert_allclose(outputs.detach().numpy().ravel(), resumed.predict(X).ravel(), atol=1e-9)


def test_a_cross_validation_averages_in_float64(tmp_path: Path) -> None:
    found = tenfold.cross_validate(model=Network, data=(X, Y), folds=2, epochs=1, batch_size=10, runs=tmp_path)
    assert {tensor.dtype for tensor in found.best.weights.values()} == {torch.float64}


def test_what_float64_weights_cannot_do_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="bf16"):
        train(model=Network, data=(X, Y), precision="bf16", runs=tmp_path)
