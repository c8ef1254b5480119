import copy
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.training import Replica, choose_loss

BATCHES = 12


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 17), nn.BatchNorm1d(17), nn.Tanh(), nn.Linear(17, 3))


def batches(count=BATCHES):
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        yield torch.randn(9, 6, generator=generator), torch.randint(3, (9,), generator=generator)


def replica(made=None, steps_per_epoch=BATCHES, lr_scale=1.0, **fields):
    training = Training(**({"optimizer": "sgd", "epochs": 1, "schedule": "constant"} | fields))
    return Replica(
        made or network(), training, functional.cross_entropy, steps_per_epoch=steps_per_epoch, lr_scale=lr_scale
    )


def same(one, other):
    return all(torch.equal(one[key], other[key]) for key in one) and one.keys() == other.keys()


def plain_loop(optimizer_class, clip=None, **options):
    made = network()
    optimizer = optimizer_class(made.parameters(), fused=True, **options)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = functional.cross_entropy(made(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(made.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return made.state_dict(), losses


@pytest.mark.parametrize(
    ("fields", "plain"),
    [
        ({"lr": 0.1, "momentum": 0.0}, (torch.optim.SGD, None, {"lr": 0.1})),
        ({"lr": 0.1}, (torch.optim.SGD, None, {"lr": 0.1, "momentum": 0.9})),
        (
            {"lr": 0.1, "nesterov": True, "weight_decay": 0.01, "clip": 0.1},
            (torch.optim.SGD, 0.1, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        ),
        ({"optimizer": "adam"}, (torch.optim.Adam, None, {"lr": 0.001})),
        ({"optimizer": "adamw", "weight_decay": 0.1}, (torch.optim.AdamW, None, {"lr": 0.001, "weight_decay": 0.1})),
        ({"optimizer": "adagrad"}, (torch.optim.Adagrad, None, {"lr": 0.01})),
    ],
)
def test_its_steps_are_those_of_a_plain_loop_bit_for_bit(fields, plain):
    optimizer_class, clip, options = plain
    weights, losses = plain_loop(optimizer_class, clip, **options)
    trained = replica(**fields)
    assert [float(trained.step(x, y)) for x, y in batches()] == losses
    assert same(trained.network.state_dict(), weights)


def test_the_loss_is_that_before_the_step():
    one = replica(optimizer="lbfgs", optimizer_options={"max_iter": 4})
    (x, y) = next(batches())
    expected = functional.cross_entropy(network()(x), y)
    loss = one.step(x, y)
    assert float(loss) == float(expected.detach())
    assert not loss.requires_grad


def test_the_gradient_is_clipped_to_its_norm():
    def norm(one):
        return float(torch.cat([parameter.grad.flatten() for parameter in one.network.parameters()]).norm())

    clipped, free = replica(clip=0.01), replica()
    for one in (clipped, free):
        one.backward(*next(batches()))
    before = norm(free)
    assert norm(clipped) == before > 0.01
    for one in (clipped, free):
        one.clip()
    assert norm(free) == before
    assert norm(clipped) == pytest.approx(0.01, rel=1e-3)


def test_the_rate_of_every_step_follows_schedule_warmup_and_scale():
    one = replica(lr=0.5, schedule="cosine", warmup=0.25, epochs=1, steps_per_epoch=8, lr_scale=2.0)
    rates = []
    for x, y in batches(8):
        one.step(x, y)
        rates.append(one.lr)
        assert {group["lr"] for group in one.optimizer.param_groups} == {one.lr}
    cosine = [(1 + torch.cos(torch.tensor(torch.pi * step / 6)).item()) / 2 for step in range(6)]
    assert rates == pytest.approx([1 / 3, 2 / 3, *cosine], abs=1e-6)
    assert one.steps == 8


@pytest.mark.parametrize("warmup", [5.0, 1e308])
def test_a_warmup_beyond_the_end_rises_to_the_end(warmup):
    one = replica(lr=1.0, warmup=warmup, steps_per_epoch=4)
    rates = []
    for x, y in batches(4):
        one.step(x, y)
        rates.append(one.lr)
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_bf16_keeps_the_weights_in_fp32_and_learns_nearly_the_same():
    full, half = replica(), replica(precision="bf16")
    for x, y in batches():
        exact, rounded = float(full.step(x, y)), float(half.step(x, y))
        assert rounded == pytest.approx(exact, rel=0.1)
    assert {parameter.dtype for parameter in half.network.parameters()} == {torch.float32}
    assert not same(full.network.state_dict(), half.network.state_dict())


def new_replica(optimizer):
    return replica(optimizer=optimizer, schedule="cosine", warmup=0.2)


@cache
def trained_without_a_pause(optimizer):
    whole = new_replica(optimizer)
    return [float(whole.step(x, y)) for x, y in batches()], whole.network.state_dict()


@settings(deadline=None, derandomize=True, max_examples=24)
@given(st.sampled_from(["sgd", "adam", "adamw", "rmsprop", "adagrad", "lbfgs"]), st.integers(0, BATCHES))
def test_a_replica_goes_on_from_its_saved_state_bit_for_bit(optimizer, pause):
    losses, weights = trained_without_a_pause(optimizer)
    before, after, given_batches = new_replica(optimizer), new_replica(optimizer), list(batches())
    for x, y in given_batches[:pause]:
        before.step(x, y)
    after.load(copy.deepcopy(before.state()))
    assert [float(after.step(x, y)) for x, y in given_batches[pause:]] == losses[pause:]
    assert same(after.network.state_dict(), weights)
    assert after.steps == BATCHES


def test_after_loading_the_flat_vector_still_is_the_network():
    one = replica()
    state = copy.deepcopy(one.state())
    one.step(*next(batches()))
    one.load(state)
    one.flat.vector.zero_()
    assert all(not parameter.any() for parameter in one.network.parameters())


def test_frozen_parameters_stay_as_they_were():
    made = network()
    made[0].weight.requires_grad_(False)
    before = made[0].weight.clone()
    one = replica(made, clip=1.0, weight_decay=0.1)
    for x, y in batches():
        one.step(x, y)
    assert torch.equal(made[0].weight, before)
    assert not torch.equal(made[3].weight, network()[3].weight)


@pytest.mark.parametrize("average", ["mean", "dict"])
def test_accumulated_gradients_are_those_of_the_whole_batch(average):
    x, y = torch.randn(10, 3), torch.randint(0, 2, (10,))
    inputs = {"input": x} if average == "dict" else x
    found = []
    for accumulate in (1, 3, 20):
        torch.manual_seed(0)
        training = Training(optimizer="sgd", accumulate=accumulate)
        replica = Replica(nn.Linear(3, 2), training, functional.cross_entropy, steps_per_epoch=2)
        losses = [float(replica.step(inputs, y)) for _ in range(2)]
        found.append((losses, replica.flat.vector.clone()))
    for losses, weights in found[1:]:
        assert losses == pytest.approx(found[0][0])
        torch.testing.assert_close(weights, found[0][1])


def masked_mean(outputs, targets):
    labeled = targets != -100
    return functional.cross_entropy(outputs[labeled], targets[labeled], reduction="sum") / labeled.sum()


def mean_of_squares(outputs, targets):
    return (outputs.sum(1) - targets).square().mean()


def after_a_step(accumulate, loss, y, precision="fp32"):
    torch.manual_seed(0)
    training = Training(optimizer="sgd", momentum=0, accumulate=accumulate, loss=loss, precision=precision)
    one = Replica(nn.Linear(4, 3), training, choose_loss(training, 3), steps_per_epoch=1)
    x = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(5))
    return float(one.step(x, y)), one.flat.vector.clone()


LABELS = torch.tensor([0, 1, -100, -100, -100, 2, 1, 0, -100, 1])


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (nn.CrossEntropyLoss(reduction="sum"), LABELS.clamp(min=0)),
        (nn.MSELoss(reduction="sum"), torch.randn(10, 3)),
        (nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0])), LABELS.clamp(min=0)),
        (nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0]), label_smoothing=0.1), LABELS),
        (nn.NLLLoss(ignore_index=1), LABELS.clamp(min=0)),
        ("cross-entropy", LABELS),
        (nn.CrossEntropyLoss(), torch.softmax(torch.randn(10, 3), 1)),
        (nn.KLDivLoss(reduction="batchmean"), torch.softmax(torch.randn(10, 3), 1)),
        (mean_of_squares, torch.randn(10)),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("accumulate", [2, 3, 4, 10])
def test_pieces_have_the_gradient_of_the_loss_of_the_batch(loss, y, accumulate):
    expected, found = after_a_step(1, loss, y), after_a_step(accumulate, loss, y)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (masked_mean, LABELS),
        (lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="sum"), LABELS.clamp(min=0)),
        (lambda outputs, targets: outputs.std() + 0 * targets.sum(), LABELS),
    ],
    ids=["masked", "sum", "of the whole batch"],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loss_of_ones_own_that_pieces_do_not_add_up_to_is_refused(loss, y, precision):
    with pytest.raises(ExperimentError, match="accumulate"):
        after_a_step(3, loss, y, precision)


def test_a_loss_that_the_network_computes_from_a_piece_is_refused():
    class Own(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x), "loss": super().forward(x).square().mean()}

    training = Training(optimizer="sgd", accumulate=2, loss="network")
    one = Replica(Own(4, 3), training, choose_loss(training, 3), steps_per_epoch=1)
    with pytest.raises(ExperimentError, match="accumulate"):
        one.step(torch.randn(6, 4), torch.zeros(6, dtype=torch.long))


def test_the_moving_average_follows_the_weights():
    replica = Replica(nn.Linear(2, 1), Training(optimizer="sgd", ema=0.5), functional.mse_loss, steps_per_epoch=9)
    expected = replica.flat.vector.clone()
    for step in range(1, 10):
        replica.step(torch.randn(4, 2), torch.randn(4, 1))
        replica.update_ema()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * replica.flat.vector
    torch.testing.assert_close(replica.ema_weights, expected)
    state = replica.state()
    replica.use_ema()
    torch.testing.assert_close(replica.flat.vector, expected)
    other = Replica(nn.Linear(2, 1), Training(optimizer="sgd", ema=0.5), functional.mse_loss, steps_per_epoch=9)
    other.load(state)
    assert torch.equal(other.ema_weights, replica.ema_weights)


def test_fp16_scales_the_loss_and_skips_steps_that_overflow():
    training = Training(optimizer="sgd", precision="fp16", clip=1.0)
    replica = Replica(nn.Linear(3, 2), training, functional.cross_entropy, steps_per_epoch=2)
    before, x, y = replica.flat.vector.clone(), torch.randn(8, 3), torch.randint(0, 2, (8,))
    for _ in range(20):
        loss = float(replica.step(x, y))  # the first scales may be too large
    assert loss < 1
    learned, scale = replica.flat.vector.clone(), replica.state()["scaler"]["scale"]
    assert not torch.equal(learned, before)
    replica.step(x * 1e30, y)
    assert torch.equal(replica.flat.vector, learned)
    assert replica.state()["scaler"]["scale"] < scale
    replica.load(replica.state())


@pytest.mark.parametrize(("optimizer", "clip"), [("sgd", None), ("sgd", 1.0), ("adam", None), ("muon", None)])
def test_sparse_gradients_work_with_every_optimizer(optimizer, clip):
    def network(sparse):
        torch.manual_seed(0)
        return nn.Sequential(nn.EmbeddingBag(9, 4, sparse=sparse), nn.Linear(4, 2))

    x, y = torch.randint(0, 9, (6, 3)), torch.randint(0, 2, (6,))
    training = Training(optimizer=optimizer, clip=clip, momentum=0.0)
    one, other = (
        Replica(network(kind), training, functional.cross_entropy, steps_per_epoch=2) for kind in (True, False)
    )
    for replica in (one, other):
        replica.step(x, y)
        replica.step(x, y)
    torch.testing.assert_close(one.flat.vector, other.flat.vector)
