import pytest
import torch
from looped import looped
from torch import nn
from torch.nn import functional

from tenfold.common.optimizer_traits import OPTIMIZER_TRAITS
from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Training
from tenfold.training import OPTIMIZERS, Replica, base_lr
from tenfold.training.optimizers import make_optimizer, try_options


def made(**fields):
    return make_optimizer(Training(**{"optimizer": "sgd"} | fields), nn.Linear(3, 2))


def refused(**fields):
    with pytest.raises(ExperimentError) as caught:
        made(**fields)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"sandblaster-lbfgs"}))
def test_every_optimizer_trains_with_its_usual_rate(name):
    torch.manual_seed(0)
    x = torch.randn(64, 5)
    y = x @ torch.randn(5, 1)
    replica = Replica(nn.Linear(5, 1), Training(optimizer=name), functional.mse_loss, steps_per_epoch=60)
    losses = [float(replica.step(x, y)) for _ in range(60)]
    assert isinstance(replica.optimizer, OPTIMIZERS[name])
    assert losses[-1] < losses[0]


def test_every_optimizer_has_a_usual_rate_and_a_given_one_wins():
    assert set(OPTIMIZER_TRAITS) <= set(OPTIMIZERS)
    for name, traits in OPTIMIZER_TRAITS.items():
        assert base_lr(Training(optimizer=name)) == traits.lr
        assert base_lr(Training(optimizer=name, lr=0.7)) == 0.7
        assert made(optimizer=name, lr=0.7).param_groups[0]["lr"] == 0.7


def test_the_usual_rate_of_muon_follows_the_batch_size():
    rates = [base_lr(Training(optimizer="muon", batch_size=size)) for size in (16, 64, 256)]
    assert rates == [0.0075, 0.015, 0.03]
    assert base_lr(Training(optimizer="sgd", batch_size=16)) == 0.05


def test_the_usual_rate_of_muon_follows_the_labels_of_a_step_up_to_64_of_a_sample():
    training = Training(optimizer="muon", batch_size=16)
    rates = [base_lr(training, labels_per_sample=labels) for labels in (0.5, 1, 4, 64, 784)]
    assert rates == [0.0075, 0.0075, 0.015, 0.06, 0.06]
    assert base_lr(Training(optimizer="muon", lr=0.02), labels_per_sample=35) == 0.02
    assert base_lr(Training(optimizer="sgd"), labels_per_sample=35) == 0.05


def test_the_documented_rates_are_the_real_ones():
    text = " ".join(Training.model_fields["lr"].description.split())
    assert "sgd and ng-sgd 0.05, muon 0.015 sqrt(labels of a step / 64)" in text
    assert "adagrad 0.01, lbfgs 0.1, sandblaster-lbfgs 1, others 0.001" in text
    rates = {name: traits.lr for name, traits in OPTIMIZER_TRAITS.items()}
    assert (
        dict.fromkeys(rates, 0.001)
        | {"sgd": 0.05, "ng-sgd": 0.05, "muon": 0.015, "adagrad": 0.01, "lbfgs": 0.1, "sandblaster-lbfgs": 1.0}
        == rates
    )


def test_fields_and_options_reach_torch():
    group = made(optimizer="sgd", momentum=0.3, nesterov=True, weight_decay=0.2).param_groups[0]
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.3, True, 0.2)
    group = made(optimizer="adam", optimizer_options={"betas": [0.8, 0.9], "eps": 1e-4}).param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.8, 0.9), 1e-4)


@pytest.mark.parametrize("option", ["foreach", "differentiable"])
def test_ways_of_computing_that_exclude_each_other_are_not_forced_together(option):
    group = made(optimizer="sgd", optimizer_options={option: True}).param_groups[0]
    assert group[option]
    assert not group["fused"]


@looped(
    ("fields", "message"),
    [
        ({"optimizer_options": {"wings": 2}}, "training.optimizer"),
        ({"nesterov": True, "momentum": 0.0}, "Nesterov momentum requires"),
        ({"optimizer": "adam", "optimizer_options": {"betas": [0.9]}}, "training.optimizer"),
        ({"optimizer": "adam", "optimizer_options": {"betas": [2.0, 0.9]}}, "Invalid beta parameter"),
        ({"optimizer": "adam", "optimizer_options": {"eps": "tiny"}}, "training.optimizer"),
        ({"optimizer_options": {"fused": True, "foreach": True}}, "cannot be made"),
        ({"optimizer_options": {"lr": 0.1}}, "training.lr"),
        ({"optimizer": "muon", "optimizer_options": {"partner": "lbfgs"}}, "lbfgs"),
        ({"optimizer": "muon", "optimizer_options": {"steps": 0}}, "steps must be a whole number from 1 to 10, not 0"),
        ({"optimizer": "muon", "optimizer_options": {"output": "sgd"}}, "sgd"),
        ({"optimizer": "muon", "optimizer_options": {"partner_lr": -1.0}}, "learning rates must be positive"),
        ({"optimizer": "muon", "optimizer_options": {"wings": 2}}, "training.optimizer"),
        ({"optimizer": "lbfgs", "weight_decay": 0.1}, "training.weight_decay: lbfgs has none"),
    ],
)
def test_what_cannot_be_made_is_explained(fields, message):
    assert message in refused(**fields)


def test_a_step_that_fails_without_any_options_is_explained(monkeypatch):
    class Failing(torch.optim.SGD):
        def step(self, *_arguments):
            raise TypeError("momentum is of no use")

    monkeypatch.setattr("tenfold.training.optimizers._eager", lambda _optimizer: Failing)
    with pytest.raises(ExperimentError) as refused:
        try_options(Training(optimizer="sgd", nesterov=True))
    assert str(refused.value) == 'training.optimizer = "sgd" cannot step: momentum is of no use'


@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_a_network_that_learns_nothing_is_explained(name):
    with pytest.raises(ModelError, match="parameters"):
        make_optimizer(Training(optimizer=name), nn.ReLU())
