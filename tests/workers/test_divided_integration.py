"""Laws of divided models: by layers bit-equal to one process, by neurons up to rounding; twins; less memory."""

import copy
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tenfold
from tenfold.engines.prepare import prepare
from tenfold.runs import Run
from tenfold.workers.task import Resolved

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("_workers_with_imports")]
BASE: dict[str, Any] = {
    "model": "cnn",
    "data": "digits",
    "limit": 192,
    "epochs": 2,
    "batch_size": 32,
    "threads": 1,
    "oversubscribe": True,
    "progress": False,
}


def train(tmp_path: Path, **fields: Any) -> Run:
    return tenfold.train(**BASE | {"runs": tmp_path} | fields)


def difference(one: Run, other: Run) -> float:
    assert list(one.weights) == list(other.weights)
    return max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)


@pytest.mark.parametrize(
    ("stages", "schedule", "fields"),
    [
        (2, "1f1b", {"optimizer": "muon", "clip": 0.5, "batchnorm": True, "patience": 2}),
        (3, "gpipe", {"optimizer": "adam", "ema": 0.9, "precision": "bf16"}),
    ],
)
def test_by_layers_is_bit_equal_to_one_process_with_accumulate(
    tmp_path: Path, stages: int, schedule: Any, fields: dict[str, Any]
) -> None:
    alone = train(tmp_path, accumulate=5, **fields)
    divided = train(tmp_path, workers=stages, divide="layers", micro_batches=5, pipeline_schedule=schedule, **fields)
    assert difference(alone, divided) == 0
    assert divided.metrics == alone.metrics
    assert len(divided.experiment.parallel.stages or ()) == stages


class Checking(nn.Module):
    """Checks shapes, which `torch.fx` cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 24), nn.BatchNorm1d(24), nn.Linear(24, 10)

    def forward(self, image: Tensor) -> Tensor:
        if image.shape[1:] != (1, 8, 8):
            raise ValueError("digits of 8x8 pixels")
        return self.last(torch.relu(self.norm(self.first(image.flatten(1)))))


def test_a_network_that_is_exported_is_bit_equal_to_one_process(tmp_path: Path) -> None:
    network = Checking()
    alone = train(tmp_path, model=copy.deepcopy(network), accumulate=4, standardize=True)
    divided = train(tmp_path, model=network, workers=2, divide="layers", micro_batches=4, standardize=True)
    assert difference(alone, divided) == 0
    assert divided.metrics == alone.metrics


class Chunked(nn.Module):
    """Passes columns of a tensor on, of which some functions round otherwise than of a copy without the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(64, 40), nn.Linear(20, 10), nn.Linear(20, 10)

    def forward(self, image: Tensor) -> Tensor:
        left, right = self.first(image.flatten(1)).chunk(2, 1)
        return self.left(torch.sigmoid(left)) + self.right(torch.sigmoid(right))


def test_tensors_have_the_same_layout_in_the_next_stage(tmp_path: Path) -> None:
    network, stages = Chunked(), ["first", "left", "right"]
    alone = train(tmp_path, model=copy.deepcopy(network), accumulate=4)
    divided = train(tmp_path, model=network, workers=3, divide="layers", stages=stages, micro_batches=4)
    assert difference(alone, divided) == 0


class Encoding(nn.Module):
    """Reads an image row by row with a stack of transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 10)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True), 2)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(8), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        return self.last(self.encoder(self.first(image.flatten(1, 2)), self.causal)[:, -1])


def test_a_stack_of_transformer_layers_is_bit_equal_to_one_process(tmp_path: Path) -> None:
    network, stages = Encoding(), ["first", "encoder.layers.1"]
    fields: dict[str, Any] = {"limit": 64, "epochs": 1}
    alone = train(tmp_path, model=copy.deepcopy(network), accumulate=4, **fields)
    divided = train(tmp_path, model=network, workers=2, divide="layers", stages=stages, micro_batches=4, **fields)
    assert difference(alone, divided) == 0
    assert divided.metrics == alone.metrics


class PartlyFrozen(nn.Module):
    """Trains its last layer only."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten, self.first, self.middle, self.last = nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10)
        self.first.requires_grad_(False)

    def forward(self, image: Tensor) -> Tensor:
        return self.last(self.middle(self.first(self.flatten(image))))


def test_a_stage_in_which_nothing_is_trained_has_no_part_in_the_norm_of_the_gradient(tmp_path: Path) -> None:
    network, stages = PartlyFrozen(), ["flatten", "first", "middle", "last"]
    fields = {"clip": 0.1, "precision": "fp64", "epochs": 1, "optimizer": "sgd"}
    alone = train(tmp_path, model=copy.deepcopy(network), accumulate=4, **fields)
    divided = train(
        tmp_path, model=network, workers=len(stages), divide="layers", stages=stages, micro_batches=4, **fields
    )
    assert difference(alone, divided) == 0


def test_pipelines_average_as_replicas_do_and_the_twin_is_equal(tmp_path: Path) -> None:
    fields = {"optimizer": "sgd", "sync_every": 2}
    replicas = train(tmp_path, workers=2, accumulate=4, **fields)
    fields |= {"workers": 4, "divide": "layers", "stages": 2, "micro_batches": 4}
    divided = train(tmp_path, **fields)
    assert difference(replicas, divided) == 0
    table = {"groups": [{"count": 4, "step_seconds": 0.01}]}
    virtual = tenfold.simulate(**BASE | {"runs": tmp_path} | fields, cluster=table)
    assert difference(divided, virtual) == 0
    assert virtual.result["times"]["wait"] > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "sgd", "model": "mlp", "hidden": [48, 20], "dropout": 0.2, "clip": 1.0},
        {"optimizer": "muon", "model": "cnn", "weight_decay": 0.1, "precision": "fp64"},  # Muon magnifies rounding
    ],
)
def test_by_neurons_is_equal_to_one_process_up_to_rounding(tmp_path: Path, fields: dict[str, Any]) -> None:
    fields = fields | {"epochs": 1}
    alone = train(tmp_path, **fields)
    divided = train(tmp_path, workers=3, divide="neurons", **fields)
    assert 0 <= difference(alone, divided) < 1e-6
    assert divided.predict_proba(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    table = {"groups": [{"count": 3, "step_seconds": 0.01}]}
    virtual = tenfold.simulate(**BASE | {"runs": tmp_path, "workers": 3, "divide": "neurons"} | fields, cluster=table)
    assert difference(divided, virtual) == 0


class Penalized(nn.Module):
    """Uses a layer's weight, its type, or what the layer returns."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.use, self.layer, self.last = use, nn.Linear(64, 24), nn.Linear(24, 10)

    def forward(self, image: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.relu(self.layer(image.flatten(1))))
        if self.use == "weight":
            outputs = outputs * self.layer.weight.norm()
        if self.use == "parameters":
            outputs = outputs * sum(parameter.square().sum() for parameter in self.parameters())
        return outputs.to(self.layer.weight.dtype) * len(self.layer.weight.shape)


@pytest.mark.parametrize("use", ["weight", "parameters"])
def test_a_network_that_uses_a_weight_of_which_workers_have_shares_is_refused(tmp_path: Path, use: str) -> None:
    with pytest.raises(tenfold.TenfoldError, match=r"layer\.weight"):
        train(tmp_path, model=Penalized(use), workers=2, divide="neurons")
    assert not list(tmp_path.glob("*"))


def test_a_network_may_ask_for_the_type_of_a_weight_and_compute_one_from_others(tmp_path: Path) -> None:
    network = Penalized("type")
    nn.utils.spectral_norm(network.layer)
    fields = {"optimizer": "sgd", "epochs": 1}
    alone = train(tmp_path, model=copy.deepcopy(network), **fields)
    assert difference(alone, train(tmp_path, model=network, workers=2, divide="neurons", **fields)) < 1e-6


def test_a_hook_that_no_stage_would_call_is_refused(tmp_path: Path) -> None:
    network = Checking()
    network.register_forward_hook(lambda _network, _inputs, outputs: 2 * outputs)
    with pytest.raises(tenfold.TenfoldError, match="hooks"):
        train(tmp_path, model=network, workers=2, divide="layers", standardize=True)
    assert not list(tmp_path.glob("*"))


def sum_of_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - nn.functional.one_hot(targets, 10)).pow(2).sum().sqrt()


def test_a_loss_that_is_no_mean_over_samples_names_the_micro_batches(tmp_path: Path) -> None:
    with pytest.raises(tenfold.TenfoldError, match="micro_batches"):
        train(tmp_path, workers=2, divide="layers", loss=sum_of_errors)


class Faulty(nn.Linear):
    """Raises or is killed in the middle of the first step."""

    orders, calls = "", 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training and multiprocessing.parent_process() is not None  # not where layers are measured
        if self.calls > 2 and self.orders == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.calls > 2:
            raise ValueError("mistake")
        return super().forward(x)


@pytest.mark.parametrize(("orders", "said"), [("kill", "worker 1 .*SIGKILL"), ("raise", "mistake")])
def test_the_other_stages_do_not_wait_for_one_that_fails(tmp_path: Path, orders: str, said: str) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), Faulty(16, 10))
    network[2].orders = orders
    with pytest.raises(tenfold.TenfoldError, match=said) as caught:
        train(tmp_path, model=network, workers=2, divide="layers", stages=["0:2", "2:"])
    assert "eval_with_key" not in str(caught.value)


class StopAfter:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_end(self, event: Any) -> None:
        if event.epoch == self.epoch:
            raise KeyboardInterrupt


class RecordedDropout(nn.Dropout):
    """Notes which of the first sample's neurons it has kept, in a file of its own."""

    path = ""

    def forward(self, x: Tensor) -> Tensor:
        kept = super().forward(torch.ones_like(x))
        if self.training and kept.any():  # which cannot be traced: it is called in every step
            Path(self.path).write_text(str(kept[0].tolist()))
        return x * kept


def test_stages_drop_different_neurons_and_the_twin_the_same(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), RecordedDropout(), nn.Linear(64, 64), RecordedDropout())
    network[2].path, network[4].path = str(tmp_path / "first"), str(tmp_path / "second")
    fields = {"model": network, "workers": 2, "divide": "layers", "stages": ["0:3", "3:"], "epochs": 1}
    real = train(tmp_path / "runs", **fields)
    assert (tmp_path / "first").read_text() != (tmp_path / "second").read_text()
    table = {"groups": [{"count": 2, "step_seconds": 0.01}]}
    virtual = tenfold.simulate(**BASE | fields | {"runs": tmp_path / "runs"}, cluster=table)
    assert difference(real, virtual) == 0


@pytest.mark.parametrize("divide", ["layers", "neurons"])
def test_a_worker_holds_its_part_of_the_weights(divide: Any) -> None:
    fields: dict[str, Any] = {"model": "mlp", "hidden": [256] * 4, "data": "digits", "limit": 64}
    stages = {"stages": ["0:4", "4:6", "6:8", "8:"]} if divide == "layers" else {}
    experiment = tenfold.Experiment(**fields, **stages, workers=4, divide=divide, oversubscribe=True)
    task = prepare(Resolved.of(experiment))
    assert task.division is not None
    assert max(task.division.numels) < 0.5 * task.metadata.numel
    assert sum(task.division.numels) < 1.1 * task.metadata.numel


@pytest.mark.parametrize("divide", ["layers", "neurons"])
def test_an_interrupted_run_resumes_with_the_same_weights(tmp_path: Path, divide: Any) -> None:
    fields = {"workers": 2, "divide": divide, "epochs": 3}
    whole = train(tmp_path, **fields)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[StopAfter(1)], **fields)
    assert difference(whole, tenfold.resume(runs=tmp_path, progress=False)) == 0


def test_a_model_that_does_not_fit_a_worker_trains_in_two(tmp_path: Path) -> None:
    fields = {"model": "limited_network:make", "optimizer": "adam", "epochs": 1, "limit": 32, "engine": "processes"}
    with pytest.raises((tenfold.TenfoldError, RuntimeError), match=r"(?i)memory"):
        train(tmp_path, **fields)
    halves = ["0:14", "14:"]
    for divided in ({"divide": "layers", "stages": halves}, {"divide": "neurons"}):
        run = train(tmp_path, workers=2, **divided, **fields)
        assert run.metrics["loss"] > 0


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"strategy": "downpour"}, "rounds"),
        ({"optimizer": "lbfgs"}, "lbfgs"),
        ({"on_failure": "continue"}, "on_failure"),
        ({"accumulate": 2}, "micro_batches"),
        ({"workers": 3, "stages": 2}, "stages"),
        ({"stages": ["0:2", "3:"]}, "stages"),
        ({"stages": []}, "stages"),
        ({"workers": 12}, "at most 9"),
        ({"divide": "data", "stages": 2}, "no effect"),
        ({"divide": "neurons", "micro_batches": 2}, "no effect"),
        ({"divide": "data", "workers": 1, "pipeline_schedule": "gpipe"}, "no effect"),
        ({"divide": "data", "model": nn.Conv2d(1, 10, 8), "optimizer": "ng-sgd"}, r"nn\.Linear"),
    ],
)
def test_what_a_divided_model_cannot_do_is_refused_in_a_sentence(
    tmp_path: Path, fields: dict[str, Any], word: str
) -> None:
    with pytest.raises(tenfold.TenfoldError, match=word):
        train(tmp_path, **{"workers": 2, "divide": "layers"} | fields)
    assert not list(tmp_path.glob("*"))
