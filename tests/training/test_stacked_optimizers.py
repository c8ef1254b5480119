import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.common.optimizer_defaults import OPTIMIZERS
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.training.optimizers import make_optimizer
from tenfold.training.stacked_optimizers import RULES, StackedOptimizer, make_rule

K, WIDTH, STEPS = 3, 21, 8
NETWORK = torch.nn.ParameterList([torch.zeros(WIDTH)])
OPTIONS = {
    "sgd": [
        {"momentum": 0.0},
        {"weight_decay": 0.1},
        {"nesterov": True, "weight_decay": 0.01},
        {"optimizer_options": {"dampening": 0.3}},
        {"optimizer_options": {"maximize": True}},
    ],
    "adam": [
        {},
        {"weight_decay": 0.1, "optimizer_options": {"betas": [0.8, 0.99], "eps": 1e-6}},
        {"optimizer_options": {"amsgrad": True}},
        {"weight_decay": 0.1, "optimizer_options": {"decoupled_weight_decay": True}},
    ],
    "adamw": [{"weight_decay": 0.1}, {"weight_decay": 0.1, "optimizer_options": {"amsgrad": True}}],
    "rmsprop": [
        {},
        {"weight_decay": 0.1, "optimizer_options": {"momentum": 0.5}},
        {"optimizer_options": {"centered": True, "alpha": 0.9}},
    ],
    "muon": [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "optimizer_options": {"partner": "adamw"}}],
    "adagrad": [{}, {"optimizer_options": {"lr_decay": 0.2, "initial_accumulator_value": 0.1}}],
}
CASES = [(name, options) for name, many in OPTIONS.items() for options in many]


def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(STEPS, K, WIDTH, generator=generator), torch.randn(K, WIDTH, generator=generator)


def by_torch(training, found, start, rates):
    rows = []
    for row in range(K):
        parameter = torch.nn.Parameter(start[row].clone())
        optimizer = make_optimizer(training, torch.nn.ParameterList([parameter]))
        for step, rate in enumerate(rates):
            parameter.grad = found[step, row].clone()
            if training.clip is not None:
                torch.nn.utils.clip_grad_norm_([parameter], training.clip)
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("lr_ratio", 1.0)
            optimizer.step()
        rows.append(parameter.detach())
    return torch.stack(rows)


def stacked(training, found, start, rates, learning=(slice(0, WIDTH),)):
    optimizer = StackedOptimizer(make_rule(training, NETWORK), start.clone(), list(learning), training.clip)
    for step, rate in enumerate(rates):
        optimizer.lr.fill_(rate)
        optimizer.gradient.copy_(found[step])
        optimizer.step()
    return optimizer


def test_every_optimizer_that_needs_no_more_than_gradients_has_a_rule():
    assert set(RULES) | {"lbfgs", "ng-sgd", "sandblaster-lbfgs"} == set(OPTIMIZERS)


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("clip", [None, 1.5])
def test_steps_are_those_of_torch(name, options, clip):
    training = Training(optimizer=name, clip=clip, **options)
    found, start = gradients(0)
    rates = [0.1 / (step + 1) for step in range(STEPS)]
    assert torch.allclose(
        stacked(training, found, start, rates).weights, by_torch(training, found, start, rates), rtol=1e-5, atol=1e-6
    )


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.sampled_from(sorted(RULES)), st.integers(0, K - 1), st.integers(1, K), st.integers(0, 2**16))
def test_rows_step_by_themselves(name, start, count, seed):
    training = Training(optimizer=name)
    found, first = gradients(seed)
    rows = slice(start, min(K, start + count))
    some = StackedOptimizer(make_rule(training, NETWORK), first.clone(), [slice(0, WIDTH)])
    some.lr.fill_(0.1)
    for step in range(STEPS):
        some.gradient.copy_(found[step])
        some.step(rows)
    whole = stacked(training, found, first, [0.1] * STEPS)
    assert torch.equal(some.weights[rows], whole.weights[rows])
    rest = [row for row in range(K) if not rows.start <= row < rows.stop]
    assert torch.equal(some.weights[rest], first[rest])


@pytest.mark.parametrize("name", sorted(RULES))
def test_frozen_columns_stay_and_the_others_do_not_notice(name):
    training = Training(optimizer=name, weight_decay=0.1)
    found, start = gradients(1)
    found[:, :, 5:9] = 0
    part = stacked(training, found, start, [0.1] * STEPS, learning=(slice(0, 5), slice(9, WIDTH)))
    whole = stacked(training, found, start, [0.1] * STEPS)
    assert torch.equal(part.weights[:, 5:9], start[:, 5:9])
    assert torch.equal(part.weights[:, :5], whole.weights[:, :5])
    assert torch.equal(part.weights[:, 9:], whole.weights[:, 9:])


@pytest.mark.parametrize("name", sorted(RULES))
def test_after_forgetting_steps_are_those_of_a_fresh_one(name):
    training = Training(optimizer=name)
    found, start = gradients(2)
    used = stacked(training, found, start, [0.1] * STEPS)
    used.forget()
    used.weights.copy_(start)
    fresh = StackedOptimizer(make_rule(training, NETWORK), start.clone(), [slice(0, WIDTH)])
    for item in (used, fresh):
        item.lr.fill_(0.1)
        item.gradient.copy_(found[0])
        item.step()
    assert torch.equal(used.weights, fresh.weights)


def test_what_cannot_be_stacked_is_said():
    with pytest.raises(ExperimentError, match="lbfgs"):
        make_rule(Training(optimizer="lbfgs"), NETWORK)
    with pytest.raises(ExperimentError, match="maximise"):
        make_rule(Training(optimizer="sgd", optimizer_options={"maximise": True}), NETWORK)
    assert make_rule(Training(optimizer="sgd", optimizer_options={"foreach": True}), NETWORK).weight_decay == 0
