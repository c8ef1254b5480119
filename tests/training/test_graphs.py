import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tenfold.data import DatasetPart, SubsetPart, Tensors
from tenfold.experiment import Training
from tenfold.training import Replica
from tenfold.training import stack as stacked
from tenfold.training.replica import make_replica, product, set_matmul_precision
from tenfold.training.stacked_replicas import Graphed

SAMPLES, BATCH, STEPS = 40, 8, 20
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def network(dropout=0.0):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 17, bias=False), nn.BatchNorm1d(17), nn.Tanh(), nn.Dropout(dropout), nn.Linear(17, 3)
    )


class Conditional(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * (2 if x.sum().item() > 0 else 1)


def data():
    generator = torch.Generator().manual_seed(2)
    return Tensors(torch.randn(SAMPLES, 6, generator=generator), torch.randint(3, (SAMPLES,), generator=generator))


def visits(steps=STEPS, size=BATCH):
    generator = torch.Generator().manual_seed(3)
    return [torch.randperm(SAMPLES, generator=generator)[:size] for _ in range(steps)]


def training(**fields):
    return Training(**({"optimizer": "sgd", "epochs": 1, "schedule": "cosine", "warmup": 0.2} | fields))


def graphed(made, part, device="cpu", **fields):
    made = made.to(device)
    return Graphed(made, training(**fields), functional.cross_entropy, part=part.to(device), steps_per_epoch=STEPS)


def eager(made, **fields):
    return Replica(made, training(**fields), functional.cross_entropy, steps_per_epoch=STEPS)


def losses(replica, part, batches):
    steps = [replica.step(x, y) for batch in batches for x, y in replica.batches([(part, batch)], len(batch))]
    return torch.stack(steps).cpu()


@pytest.fixture
def recorder(monkeypatch):
    """A device that can record, played by a CPU: what was recorded is done again at every replay."""
    recorded = []

    def capture(step, example):
        given = example.clone()
        step(given)
        recorded.append(tuple(given.shape))

        def replay(values):
            given.copy_(values)
            return step(given).clone()

        return replay

    for module in ("stack", "replica"):
        monkeypatch.setattr(f"tenfold.training.{module}.supports_graphs", lambda device: True)
    monkeypatch.setattr(stacked, "capture", capture)
    return recorded


def test_a_cpu_trains_plain_replicas():
    made = make_replica(
        network(), training(), functional.cross_entropy, part=data(), warn=pytest.fail, steps_per_epoch=STEPS
    )
    assert type(made) is Replica


@pytest.mark.parametrize("picked", [False, True])
@pytest.mark.parametrize("fields", [{}, {"optimizer": "adamw", "clip": 0.1}, {"optimizer": "adagrad"}])
def test_captured_steps_are_those_of_a_plain_replica(recorder, fields, picked):
    part = SubsetPart(data(), torch.arange(SAMPLES).flip(0)) if picked else data()
    one, other = graphed(network(), part, **fields), eager(network(), **fields)
    assert one.prepare({BATCH: 18, 5: 2}) == ""
    assert recorded_shapes(recorder) == {(1, BATCH)}
    batches = [*visits(18), *visits(2, 5)]
    assert torch.allclose(losses(one, part, batches), losses(other, part, batches), rtol=1e-4)
    assert torch.allclose(one.flat.vector, other.flat.vector, atol=1e-5)
    assert one.lr == other.lr
    assert one.steps == other.steps == 20


def recorded_shapes(recorder):
    return set(recorder)


def test_preparing_teaches_nothing(recorder):
    one = graphed(network(dropout=0.5), data(), optimizer="adam")
    before, drawn = copy.deepcopy(one.state()), torch.get_rng_state()
    one.prepare({BATCH: STEPS})
    after = one.state()
    assert torch.equal(torch.get_rng_state(), drawn)
    assert after["steps"] == 0
    for part in ("network", "optimizer"):
        assert all(torch.equal(tensor, before[part][name]) for name, tensor in after[part].items())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_it_goes_on_from_its_saved_state(recorder, optimizer):
    part, batches = data(), visits()
    whole, before, after = (graphed(network(), part, optimizer=optimizer) for _ in range(3))
    expected = losses(whole, part, batches)
    losses(before, part, batches[:7])
    after.load(copy.deepcopy(before.state()))
    after.prepare({BATCH: STEPS})
    assert torch.equal(losses(after, part, batches[7:]), expected[7:])
    assert torch.equal(after.flat.vector, whole.flat.vector)


def test_what_cannot_be_captured_is_trained_anyway_and_said_once(monkeypatch, recorder):
    def refuse(step, example):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(stacked, "capture", refuse)
    part = data()
    one, other = graphed(Conditional(*network()), part), eager(Conditional(*network()))
    assert one.prepare({BATCH: STEPS, 9: STEPS}) == (
        "steps are not captured in a CUDA graph, which is slow for small networks: "
        "RuntimeError: operation not permitted when stream is capturing"
    )
    assert torch.allclose(losses(one, part, visits()), losses(other, part, visits()), rtol=1e-4)


@pytest.mark.parametrize(
    ("fields", "part", "why"),
    [
        ({"optimizer": "lbfgs"}, data(), "lbfgs decides on the CPU"),
        ({}, DatasetPart(torch.utils.data.TensorDataset(data().x, data().y)), "read sample by sample"),
        ({"optimizer_options": {"differentiable": False}}, data(), None),
    ],
)
def test_why_steps_are_not_captured_is_said_before_training(recorder, fields, part, why):
    said = []
    made = make_replica(
        network(), training(**fields), functional.cross_entropy, part=part, warn=said.append, steps_per_epoch=STEPS
    )
    assert isinstance(made, Graphed) == (why is None)
    assert [sentence for sentence in said if why not in sentence] == []
    assert len(said) == (why is not None)


def test_tf32_is_allowed_for_the_time_of_training_alone():
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    with set_matmul_precision("fp32"):
        assert not products.allow_tf32
        assert not convolutions.allow_tf32
    with set_matmul_precision("tf32"):
        assert products.allow_tf32
        assert convolutions.allow_tf32
    assert (products.allow_tf32, convolutions.allow_tf32) == before


def test_mixing_is_never_rounded_to_tf32():
    class Matrix:
        def __matmul__(self, other):
            return torch.backends.cuda.matmul.allow_tf32

    with set_matmul_precision("tf32"):
        assert product(Matrix(), None) is False
        assert torch.backends.cuda.matmul.allow_tf32


@needs_gpu
@pytest.mark.parametrize("fields", [{}, {"clip": 0.1}, {"optimizer": "adam"}, {"optimizer": "rmsprop"}])
def test_graphs_on_a_gpu_learn_what_a_plain_replica_learns(fields):
    part = data().to("cuda")
    with set_matmul_precision("fp32"):
        one, other = graphed(network(), part, "cuda", **fields), eager(network().cuda(), **fields)
        assert one.prepare({BATCH: STEPS}) == ""
        assert len(one.stacked._captured) == 1
        assert torch.allclose(losses(one, part, visits()), losses(other, part, visits()), rtol=1e-4)
    assert torch.allclose(one.flat.vector, other.flat.vector, atol=1e-4)


@needs_gpu
def test_data_dependent_control_flow_on_a_gpu_is_said_and_trained():
    part = data().to("cuda")
    one = graphed(Conditional(*network()), part, "cuda")
    assert "not captured" in one.prepare({BATCH: STEPS})
    assert losses(one, part, visits()).isfinite().all()


@needs_gpu
def test_dropout_on_a_gpu_draws_anew_at_every_replay():
    part = data().to("cuda")
    one = graphed(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), part, "cuda", lr=1e-9)
    assert one.prepare({BATCH: STEPS}) == ""
    assert len(set(losses(one, part, visits(1) * 5).tolist())) == 5
