import copy
import gc
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from looped import looped
from torch import nn
from torch.nn import functional

from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.training import Replica
from tenfold.training.natural_gradient import NaturalGradientSGD, Rows, start_factor
from tenfold.training.optimizers import make_optimizer

ALPHA = 4.0


def batches(count, samples, columns, seed=0):
    """Minibatches of rows whose columns are correlated and have different sizes."""
    torch.manual_seed(seed)
    mixing = torch.randn(columns, columns, dtype=torch.float64) * torch.linspace(0.2, 2, columns, dtype=torch.float64)
    return [torch.randn(samples, columns, dtype=torch.float64) @ mixing for _ in range(count)]


def dense(factor):
    """Return F as a whole matrix."""
    basis, rest = factor["basis"], factor["rest"]
    low_rank = basis.T @ ((factor["eigenvalues"] - rest)[:, None] * basis)
    return low_rank + rest * torch.eye(basis.shape[1], dtype=basis.dtype)


def smoothed_inverse(fisher):
    columns = len(fisher)
    return torch.linalg.inv(fisher + ALPHA / columns * fisher.trace() * torch.eye(columns, dtype=fisher.dtype))


def mlp(width=12, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))


def replica(network, **fields):
    return Replica(network, Training(optimizer="ng-sgd", **fields), functional.cross_entropy, steps_per_epoch=50)


def problem(samples=64, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(samples, 6)
    return x, (x @ torch.randn(6, 3)).argmax(1)


@pytest.mark.parametrize("with_one", [False, True])
def test_at_full_rank_without_forgetting_the_factor_is_the_mean_scatter(with_one):
    columns = 7
    factor = start_factor(columns + with_one, columns + with_one, torch.tensor(1.0, dtype=torch.float64))
    fisher = torch.eye(columns + with_one, dtype=torch.float64)
    for seen, x in enumerate(batches(5, 40, columns), 1):
        whole = torch.cat([x, x.new_ones(len(x), 1)], 1) if with_one else x
        rows, ones, scale = Rows(x, with_one=with_one).precondition(factor, ALPHA)
        preconditioned = scale * (torch.cat([rows, ones[:, None]], 1) if with_one else rows)
        expected = whole @ smoothed_inverse(fisher)
        torch.testing.assert_close(preconditioned, expected * whole.norm() / expected.norm())
        factor = Rows(x, with_one=with_one).learn(factor, 1 / (seen + 1))
        fisher += (whole.T @ whole / len(x) - fisher) / (seen + 1)
        torch.testing.assert_close(dense(factor), fisher)


def test_a_lower_rank_keeps_the_trace_and_finds_the_largest_directions():
    columns, rank = 30, 5
    torch.manual_seed(0)
    axes = torch.linalg.qr(torch.randn(columns, columns, dtype=torch.float64)).Q
    variances = torch.tensor([100.0, 80, 60, 40, 20] + [1.0] * 25, dtype=torch.float64)
    x = torch.randn(4000, columns, dtype=torch.float64) * variances.sqrt() @ axes.T
    factor = Rows(x, with_one=False).start(rank)
    for _ in range(60):
        factor = Rows(x, with_one=False).learn(factor, 0.5)
    scatter = x.T @ x / len(x)
    torch.testing.assert_close(dense(factor).trace(), scatter.trace())
    largest = torch.linalg.eigvalsh(scatter).flip(0)[:rank]
    torch.testing.assert_close(factor["eigenvalues"], largest, rtol=1e-3, atol=0)
    assert torch.linalg.matrix_norm(dense(factor) - scatter) < 0.05 * torch.linalg.matrix_norm(scatter)


@given(
    columns=st.integers(1, 20),
    rank=st.integers(1, 24),
    samples=st.integers(1, 30),
    scale=st.sampled_from([0.0, 1e-6, 1.0, 1e4]),
    eta=st.floats(0.001, 0.9),
    with_one=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_factors_stay_symmetric_positive_definite_with_orthonormal_rows(
    columns, rank, samples, scale, eta, with_one, seed
):
    torch.manual_seed(seed)
    factor = Rows(torch.randn(samples, columns), with_one=with_one).start(rank)
    for _ in range(6):
        rows = Rows(scale * torch.randn(samples, columns), with_one=with_one)
        preconditioned, ones, kept = rows.precondition(factor, ALPHA)
        norm = math.hypot(float(preconditioned.norm()), 0.0 if ones is None else float(ones.norm()))
        assert float(kept) * norm == pytest.approx(math.sqrt(float(rows.square)), rel=1e-4)
        factor = rows.learn(factor, eta)
        basis = factor["basis"].double()
        torch.testing.assert_close(basis @ basis.T, torch.eye(len(basis), dtype=torch.float64), rtol=0, atol=1e-4)
        fisher = dense(factor).double()
        assert float((fisher - fisher.T).abs().max()) <= 1e-6 * float(fisher.abs().max())
        assert min(float(factor["eigenvalues"].min()), float(factor["rest"])) > 0


def test_the_gradient_is_the_product_of_both_preconditioned_sides():
    torch.manual_seed(0)
    layer, x = nn.Linear(5, 4), torch.randn(2, 9, 5)
    optimizer = NaturalGradientSGD(layer)
    layer(x).square().mean().backward()  # the factors of the first minibatch
    factors = copy.deepcopy(optimizer.state[layer.weight])
    optimizer.zero_grad()
    y = layer(x)
    y.retain_grad()
    y.square().mean().backward()
    rows = torch.cat([x.reshape(-1, 5), torch.ones(18, 1)], 1)
    sides = []
    for name, side in (("outputs", y.grad.reshape(-1, 4)), ("inputs", rows)):
        preconditioned = side @ smoothed_inverse(dense(factors[name]))
        sides.append(preconditioned * side.norm() / preconditioned.norm())
    expected = sides[0].T @ sides[1]
    torch.testing.assert_close(layer.weight.grad, expected[:, :-1])
    torch.testing.assert_close(layer.bias.grad, expected[:, -1])


def test_the_gradient_of_the_inputs_and_other_layers_are_the_usual_ones():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    usual = copy.deepcopy(network)
    optimizer = NaturalGradientSGD(network)
    x = torch.randn(10, 1, 6)
    for item in (network, usual):
        item(x).square().mean().backward()
    assert torch.equal(network[0].weight.grad, usual[0].weight.grad)
    assert not torch.allclose(network[2].weight.grad, usual[2].weight.grad)
    assert set(optimizer.state) == {network[2].weight}


def test_it_learns_and_a_minibatch_that_overflows_leaves_no_trace():
    x, y = problem()
    one = replica(mlp())
    losses = [float(one.step(x, y)) for _ in range(50)]
    assert losses[-1] < 0.2 * losses[0]
    before = copy.deepcopy(one.optimizer.state_dict()["state"])
    one.backward(x * math.inf, y)
    for saved, state in zip(before.values(), one.optimizer.state_dict()["state"].values(), strict=True):
        for name in {"inputs", "outputs"} & set(state):
            assert torch.equal(saved[name]["basis"], state[name]["basis"])


def test_a_saved_state_continues_with_the_same_bits():
    x, y = problem()
    first, second = replica(mlp()), replica(mlp(seed=1))
    for _ in range(7):
        first.step(x, y)
    second.load(pickle.loads(pickle.dumps(first.state())))
    assert [float(first.step(x, y)) for _ in range(9)] == [float(second.step(x, y)) for _ in range(9)]
    assert torch.equal(first.flat.vector, second.flat.vector)


def test_a_copy_with_its_optimizer_continues_with_the_same_bits_and_leaves_the_original_alone():
    x, y = problem()
    network = mlp()
    optimizer = NaturalGradientSGD(network)

    def steps(network, optimizer):
        for _ in range(6):
            optimizer.zero_grad()
            functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in network.parameters()]

    steps(network, optimizer)
    copied = copy.deepcopy((network, optimizer))
    before = copy.deepcopy(optimizer.state_dict())
    by_copy = steps(*copied)
    assert torch.equal(before["state"][0]["inputs"]["basis"], optimizer.state_dict()["state"][0]["inputs"]["basis"])
    assert all(map(torch.equal, by_copy, steps(network, optimizer)))


@pytest.mark.parametrize("kind", ["copied", "pickled", "left by its optimizer"])
def test_without_its_optimizer_a_network_has_the_usual_gradients(kind):
    network, usual = mlp(), mlp()
    optimizer = NaturalGradientSGD(network)
    if kind == "copied":
        network = copy.deepcopy(network)
    elif kind == "pickled":
        network = pickle.loads(pickle.dumps(network))
    else:
        del optimizer
        gc.collect()
    x, y = problem()
    for item in (network, usual):
        functional.cross_entropy(item(x), y).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(network.parameters(), usual.parameters(), strict=True))


@looped(
    ("network", "options", "message"),
    [
        (nn.Conv1d(1, 2, 3), {}, "nn.Linear"),
        (nn.Linear(2, 2), {"rank": 0}, "rank"),
        (nn.Linear(2, 2), {"alpha": 0.0}, "alpha"),
        (nn.Linear(2, 2), {"history": -1}, "history"),
        (nn.Linear(2, 2), {"update_every": 0.5}, "update_every"),
    ],
)
def test_wrong_use_is_named(network, options, message):
    with pytest.raises(ExperimentError, match=message):
        make_optimizer(Training(optimizer="ng-sgd", optimizer_options=options), network)


def test_parameters_instead_of_the_network_are_refused():
    with pytest.raises(TypeError, match="network"):
        NaturalGradientSGD(nn.Linear(2, 2).parameters())
