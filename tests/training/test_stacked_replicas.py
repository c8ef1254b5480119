import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from torch import nn
from torch.nn import functional

from tenfold.data import Tensors
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.training import Replica, stack, stacked_replicas
from tenfold.training.flat_weights import FlatState
from tenfold.training.schedules import plan_lr_schedule
from tenfold.training.stack import Stack, StackedReplicas, is_worth_compiling, largest_group
from tenfold.training.stacked_optimizers import Loop
from tenfold.training.stacked_replicas import Lockstep, ReplicaRows

K, BATCH, SAMPLES = 3, 8, 60
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")),
]


def state(stacked, row):
    return {name: tensor.detach().clone() for name, tensor in stacked.stack.network_at(row).state_dict().items()}


# A bias before a normalization has no gradient but rounding errors, which Adam makes as large as any other.
def perceptron(dropout=0.0):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(36, 11, bias=False),
        nn.BatchNorm1d(11),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(11, 4),
    )


def convolutions(dropout=0.0):
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    ).to(memory_format=torch.channels_last)


class Conditional(nn.Module):
    """Looks at its numbers, which vmap and graphs cannot."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(36, 4)

    def forward(self, x):
        out = self.linear(x.flatten(1))
        return out * 2 if out.mean().item() > 0 else out


def data(device="cpu"):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 1, 6, 6, generator=generator)
    return Tensors(x, torch.randint(4, (SAMPLES,), generator=generator)).to(device)


def made(make, device="cpu", **options):
    torch.manual_seed(3)
    return make(**options).to(device)


def orders(steps, seed=0, size=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SAMPLES, (steps, K, size), generator=generator)


def settings_of(**fields):
    return Training(**({"optimizer": "sgd", "epochs": 1, "schedule": "cosine", "warmup": 0.2} | fields))


def stacked(network, training, *, k=K, steps=50, method="loop", **options):
    lr_schedule = plan_lr_schedule(training, steps_per_epoch=steps)
    device = next(network.parameters()).device
    return StackedReplicas(
        network, k, training, functional.cross_entropy, data(device), lr_schedule=lr_schedule, method=method, **options
    )


def alone(network, training, batches, part):
    replica = Replica(network, training, functional.cross_entropy, steps_per_epoch=len(batches))
    return replica, torch.stack([replica.step(part.x[rows], part.y[rows]) for rows in batches])


FIELDS = [
    {"lr": 0.1},
    {"lr": 0.1, "nesterov": True, "weight_decay": 0.01, "clip": 0.3},
    {"optimizer": "adam", "lr": 0.01},
    {"optimizer": "rmsprop", "clip": 1.0},
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("make", [perceptron, convolutions])
def test_fused_replicas_learn_what_separate_ones_learn(make, fields, device):
    """Per-replica losses within 1e-4, relative, over 50 steps; on a GPU captured in a graph."""
    training, order = settings_of(**fields), orders(50).to(device)
    separate = [alone(made(make, device), training, order[:, row], data(device)) for row in range(K)]

    @looped("method", ["loop", "vmap"])
    def check(method):
        together = stacked(made(make, device), training, method=method)
        assert together.prepare({(0, K, BATCH): 50}) == ""
        losses = torch.stack([together.step(indices) for indices in order])
        for row, (replica, expected) in enumerate(separate):
            assert torch.allclose(losses[:, row], expected, rtol=1e-4)
            for name, tensor in replica.network.state_dict().items():
                assert torch.allclose(state(together, row)[name].float(), tensor.float(), rtol=1e-4, atol=1e-5), name

    check()


@pytest.fixture
def quick_compiler(monkeypatch):
    """torch.compile without a compiler behind it: what it records is done operation by operation."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_steps_learn_what_others_learn(device, quick_compiler, monkeypatch):
    for module in (stack, stacked_replicas):
        monkeypatch.setattr(module, "supports_graphs", lambda _device: True)
    monkeypatch.setattr(StackedReplicas, "_capture", StackedReplicas._capture if device == "cuda" else lambda *_: "")
    training, order = settings_of(lr=0.1, compile=True), orders(6).to(device)
    separate = [alone(made(convolutions, device), training, order[:, row], data(device)) for row in range(K)]
    together = stacked(made(convolutions, device), training, steps=6)
    assert together.prepare({(0, K, BATCH): 6, (0, K, 3): 1}) == ""
    together.method = together._methods["compiled"]  # whichever was faster
    losses = torch.stack([together.step(indices) for indices in order])
    for row, (replica, expected) in enumerate(separate):
        assert torch.allclose(losses[:, row], expected, rtol=1e-4)
        for name, tensor in replica.network.state_dict().items():
            assert torch.allclose(state(together, row)[name].float(), tensor.float(), rtol=1e-4, atol=1e-5), name


class Words(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(9, 5, sparse=True), nn.Linear(5, 4)

    def forward(self, x):
        return self.out(self.words((x.flatten(1) > 0).long() * 8).mean(1))


@pytest.mark.parametrize("method", ["loop", "vmap"])
def test_sparse_gradients_are_learned_from_as_dense_ones(method):
    training, order = settings_of(lr=0.1, momentum=0.0), orders(5)
    together = stacked(made(Words), training, method=method, steps=5)
    losses = torch.stack([together.step(indices) for indices in order])
    _, expected = alone(made(Words), training, order[:, 1], data())
    assert torch.allclose(losses[:, 1], expected, rtol=1e-4)


def test_a_loop_on_a_cpu_draws_what_each_replica_would_draw_alone():
    training, order = settings_of(), orders(12)
    together = stacked(made(perceptron, dropout=0.5), training, steps=12)
    together.prepare({(0, K, BATCH): 12})
    together.seed([torch.Generator().manual_seed(row).get_state() for row in range(K)])
    losses = torch.stack([together.step(indices) for indices in order])
    for row in range(K):
        torch.manual_seed(row)
        _, expected = alone(made_without_draw(row), training, order[:, row], data())
        assert torch.allclose(losses[:, row], expected, rtol=1e-5)


def made_without_draw(row):
    network = made(perceptron, dropout=0.5)
    torch.manual_seed(row)
    return network


@pytest.mark.parametrize("method", ["loop", "vmap"])
def test_dropout_differs_between_replicas(method):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 4))
    together = stacked(network, settings_of(), method=method)
    losses = together.step(orders(1)[0, :1].expand(K, -1))
    assert len(set(losses.tolist())) == K


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.sampled_from(["loop", "vmap"]), st.integers(1, K), st.integers(0, K - 1), st.integers(2, BATCH))
def test_rows_that_learn_apart_or_in_groups_learn_the_same(method, at_once, cut, size):
    training, order = settings_of(optimizer="adam"), orders(4, size=size)
    whole = stacked(made(perceptron), training, method=method)
    parts = stacked(made(perceptron), training, method=method)
    parts.at_once = at_once
    for indices in order:
        expected = whole.step(indices)
        parts.begin_step()
        pieces = [rows for rows in (slice(0, cut), slice(cut, K)) if rows.start < rows.stop]
        losses = torch.cat([parts.learn(indices[rows], rows) for rows in pieces])
        assert torch.allclose(losses, expected, rtol=1e-4)
    assert torch.allclose(whole.stack.matrix, parts.stack.matrix, atol=1e-4)


def test_frozen_weights_stay():
    network = made(perceptron)
    network[1].weight.requires_grad_(False)
    before = network[1].weight.clone()
    for method in ("loop", "vmap"):
        together = stacked(copy.deepcopy(network), settings_of(weight_decay=0.1), method=method)
        for indices in orders(3):
            together.step(indices)
        assert all(torch.equal(state(together, row)["1.weight"], before) for row in range(K))
        assert not torch.equal(state(together, 0)["5.bias"], network[5].bias)


def test_mixing_is_a_product_with_the_matrix_and_keeps_moments():
    together = stacked(made(perceptron), settings_of(), method="vmap")
    for indices in orders(5):
        together.step(indices)
    before = [state(together, row) for row in range(K)]
    shares = torch.tensor([[0.5, 0.25, 0.25]]).expand(K, K)
    rows = ReplicaRows(Lockstep(together, [SAMPLES] * K, BATCH), slice(0, K))

    def mix(matrix, *, equal):
        rows.batch_norm.variances_to_moments()
        rows.vector.copy_(matrix @ rows.vector)
        rows.batch_norm.moments_to_variances(replicas_are_equal=equal)

    mix(shares, equal=True)
    means = torch.stack([state["2.running_mean"] for state in before])
    variances = torch.stack([state["2.running_var"] for state in before])
    mean = shares[0] @ means
    variance = shares[0] @ variances + shares[0] @ (means - mean).square()
    for row in range(K):
        after = state(together, row)
        assert torch.allclose(after["1.weight"], sum(w * s["1.weight"] for w, s in zip(shares[0], before, strict=True)))
        assert torch.allclose(after["2.running_mean"], mean, atol=1e-6)
        assert torch.allclose(after["2.running_var"], variance, atol=1e-6)
    pairs = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    together.stack.load(2, before[2])
    kept = together.stack.matrix[2].clone()
    mix(pairs, equal=False)
    assert torch.allclose(together.stack.matrix[2], kept, atol=1e-6)


def test_a_row_is_laid_out_like_the_flat_vector_and_shown_as_a_network():
    network = made(convolutions)
    vector = FlatState(copy.deepcopy(network)).vector
    together = stacked(network, settings_of())
    assert all(torch.equal(row, vector) for row in together.stack.matrix)
    other = made(convolutions)
    nn.init.normal_(other[0].weight)
    together.stack.load(1, other.state_dict())
    assert torch.equal(state(together, 1)["0.weight"], other[0].weight)
    assert torch.equal(state(together, 2)["0.weight"], network[0].weight)
    x = data().x[:4]
    other.eval()
    assert torch.allclose(together.stack.network_at(1).eval()(x), other(x), atol=1e-6)


def test_learned_columns_are_the_gradients_one_after_another():
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 5), nn.Linear(5, 4))
    network.to(memory_format=torch.channels_last)[2].requires_grad_(False)
    stack = Stack(network, K)
    gradients = torch.zeros(K, stack.parameters)
    views = stack.gradient_views(gradients)
    for number, view in enumerate(views):
        view.copy_(torch.arange(view.numel()).view_as(view) + 1000.0 * number)
    sent = torch.cat([view[1].reshape(-1) for view in views])
    assert len(sent) == 3 * 2 * 9 + 3 + 5 * 4 + 4
    assert torch.equal(gradients[1, stack.learned_columns()], sent)
    assert stack.learned_columns().diff().min() < 0  # channels last


def test_the_probe_changes_nothing_and_tells_its_choice():
    together = stacked(made(perceptron, dropout=0.3), settings_of(optimizer="adam"), method="auto")
    before = {name: tensor.clone() for name, tensor in together.tensors().items()}
    drawn = torch.get_rng_state()
    assert together.prepare({(0, K, BATCH): 50, (0, 1, 3): 1}) == ""
    assert all(torch.equal(tensor, before[name]) for name, tensor in together.tensors().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert together.description.startswith("3 replicas step together by ")


@pytest.mark.parametrize(("steps", "tried"), [(10, ["vmap"]), (10_000, ["vmap", "loop"])])
def test_branches_are_captured_where_the_run_is_long_enough_to_pay_for_that(steps, tried, monkeypatch):
    together, probed = stacked(made(perceptron), settings_of(), method="auto"), []
    monkeypatch.setattr(stack, "supports_graphs", lambda _device: True)
    monkeypatch.setattr(StackedReplicas, "_capture", lambda *_: "")
    monkeypatch.setattr(StackedReplicas, "_probe", lambda self, name, *_: probed.append(name) or 0.001)
    together.prepare({(0, K, BATCH): steps})
    assert probed == tried


def test_what_vmap_cannot_do_goes_in_a_loop():
    together = stacked(made(Conditional), settings_of(), method="auto")
    assert together.prepare({(0, K, BATCH): 50}) == ""
    assert isinstance(together.method, Loop)
    assert "vmap fails (RuntimeError" in together.description
    assert together.step(orders(1)[0]).shape == (K,)


def test_what_works_in_no_way_is_remembered():
    together = stacked(nn.Linear(3, 2), settings_of(), method="auto")
    assert together.prepare({(0, K, BATCH): 50}) == ""
    assert together.failure.startswith("RuntimeError: ")
    assert together.description == ""


@given(st.integers(1, 500), st.floats(1, 1e6), st.floats(1, 1e9))
def test_groups_hold_everyone_once_and_fit(count, each, available):
    if available < each:
        with pytest.raises(ExperimentError, match="one replica needs"):
            largest_group(count, each, available)
        return
    largest = largest_group(count, each, available)
    assert 1 <= largest <= count
    assert largest * each <= available


def test_gradients_can_be_left_to_the_caller():
    together = stacked(made(perceptron), settings_of(), gradients_only=True)
    before = together.optimizer.weights.clone()
    together.step(orders(1)[0])
    assert torch.equal(together.optimizer.weights, before)
    assert together.optimizer.gradient.any(dim=1).all()
    together.optimizer.step()
    assert not torch.equal(together.optimizer.weights, before)


def test_compiling_is_worth_it_where_three_tenths_of_a_run_are_more_than_it_takes() -> None:
    assert not is_worth_compiling(0.36e-3, 469 * 3), "LeNet-5 on MNIST: 0.5 s"
    assert not is_worth_compiling(8e-3, 6000), "48 s, of which 14.4 s could be saved"
    assert is_worth_compiling(8e-3, 6500), "52 s, 15.6 s"
