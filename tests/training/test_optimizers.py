import copy

import pytest
import torch
from looped import looped
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

import tenfold
from tenfold.common.optimizer_defaults import OPTIMIZER_TRAITS
from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Training
from tenfold.training import OPTIMIZERS, Replica, base_lr
from tenfold.training.optimizers import ASSUMED, count_state_vectors, make_optimizer
from tenfold.training.schedules import check_own_schedule, plan_lr_schedule


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


@pytest.mark.parametrize(
    "options", [{}, {"nesterov": True}, {"weight_decay": 0.1}, {"optimizer_options": {"dampening": 0.5}}]
)
def test_layers_may_be_used_for_the_first_time_at_different_steps(options):
    """As with LayerDrop, or mixtures of experts; torch's fused kernel takes all momenta or none."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
    plain = copy.deepcopy(layers)
    training = Training(optimizer="sgd", lr=0.1, momentum=0.9, **options)
    own = make_optimizer(training, layers)
    expected = torch.optim.SGD(
        plain.parameters(),
        lr=0.1,
        momentum=0.9,
        foreach=False,
        **options.get("optimizer_options", {}),
        **{name: value for name, value in options.items() if name != "optimizer_options"},
    )
    for used in ([0], [1], [0, 1], [2, 0], [1]):
        x = torch.randn(5, 3)
        for network, optimizer in ((layers, own), (plain, expected)):
            optimizer.zero_grad()
            sum(network[place](x).square().mean() for place in used).backward()
            optimizer.step()
    torch.testing.assert_close(layers.state_dict(), plain.state_dict())


@looped(
    ("fields", "message"),
    [
        ({"optimizer_options": {"wings": 2}}, "training.optimizer"),
        ({"nesterov": True, "momentum": 0.0}, "Nesterov momentum requires"),
        ({"optimizer": "adam", "optimizer_options": {"betas": [0.9]}}, "training.optimizer"),
        ({"optimizer": "adam", "optimizer_options": {"betas": [2.0, 0.9]}}, "Invalid beta parameter"),
        ({"optimizer": "adam", "optimizer_options": {"eps": "tiny"}}, "training.optimizer"),
        ({"optimizer_options": {"fused": True, "foreach": True}}, "cannot be created"),
        ({"optimizer_options": {"lr": 0.1}}, "training.lr"),
        ({"optimizer": "muon", "optimizer_options": {"partner": "lbfgs"}}, "lbfgs"),
        ({"optimizer": "muon", "optimizer_options": {"steps": 0}}, "steps must be a whole number from 1 to 10, not 0"),
        ({"optimizer": "muon", "optimizer_options": {"output": "sgd"}}, "sgd"),
        ({"optimizer": "muon", "optimizer_options": {"partner_lr": -1.0}}, "learning rates must be positive"),
        ({"optimizer": "muon", "optimizer_options": {"wings": 2}}, "training.optimizer"),
        ({"optimizer": "lbfgs", "weight_decay": 0.1}, "training.weight_decay: lbfgs does not support it"),
    ],
)
def test_what_cannot_be_made_is_explained(fields, message):
    assert message in refused(**fields)


@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_a_network_that_learns_nothing_is_explained(name):
    with pytest.raises(ModelError, match="parameters"):
        make_optimizer(Training(optimizer=name), nn.ReLU())


@pytest.mark.parametrize("name", sorted(set(OPTIMIZER_TRAITS) - {"lbfgs", "sandblaster-lbfgs"}))
def test_no_more_are_found_after_a_step_than_the_traits_say(name):
    assert count_state_vectors(Training(optimizer=name), nn.Linear(8, 8)) <= OPTIMIZER_TRAITS[name].state_vectors


def test_those_of_a_users_own_are_counted_or_assumed():
    assert count_state_vectors(Training(optimizer=torch.optim.Adamax), nn.Linear(8, 8)) == 2
    assert count_state_vectors(Training(optimizer=torch.optim.SparseAdam), nn.Linear(8, 8)) == ASSUMED


def test_a_network_without_anything_to_train_needs_none():
    assert count_state_vectors(Training(optimizer=torch.optim.Adamax), nn.Linear(8, 8).requires_grad_(False)) == 0


def two_groups(network):
    weights, biases = (
        [p for name, p in network.named_parameters() if ("bias" in name) is bias] for bias in (False, True)
    )
    return torch.optim.SGD([{"params": weights}, {"params": biases, "lr": 0.2}], lr=0.1)


def plain(parameters):
    return torch.optim.NAdam(parameters, lr=0.03)


@pytest.mark.parametrize(
    ("optimizer", "kind", "rate"),
    [
        (torch.optim.NAdam, torch.optim.NAdam, 0.002),
        ("torch.optim:NAdam", torch.optim.NAdam, 0.002),
        (torch.optim.SGD, torch.optim.SGD, 0.001),
        (plain, torch.optim.NAdam, 0.03),
        (lambda parameters, lr=0.5: torch.optim.Adam(parameters, lr=lr), torch.optim.Adam, 0.5),
        (two_groups, torch.optim.SGD, 0.1),
    ],
)
def test_classes_and_functions_make_optimizers(optimizer, kind, rate):
    training = Training(optimizer=optimizer)
    made = make_optimizer(training, nn.Linear(3, 2))
    assert isinstance(made, kind)
    assert base_lr(training) == made.param_groups[0]["lr"] == rate
    assert base_lr(Training(optimizer=optimizer, lr=0.7)) == 0.7


def test_the_rates_of_groups_keep_their_ratio():
    made = make_optimizer(Training(optimizer=two_groups), nn.Linear(3, 2))
    assert made.param_groups[1]["lr_ratio"] == 2.0


def test_sparse_gradients_train_with_the_built_in_optimizers_and_with_sparse_adam():
    for optimizer in ("sgd", torch.optim.SparseAdam):
        network = nn.EmbeddingBag(10, 2, sparse=True)
        made = make_optimizer(Training(optimizer=optimizer), network)
        network(torch.tensor([[1, 2, 3]])).sum().backward()
        before = network.weight.detach().clone()
        made.step()
        assert not torch.equal(before, network.weight)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": torch.optim.NAdam, "optimizer_options": {"wings": 2}}, "cannot be created: TypeError"),
        ({"optimizer": lambda parameters: 3}, "torch.optim.Optimizer"),
        ({"optimizer": "torch.optim:Nothing"}, "'torch.optim' has no 'Nothing'"),
        ({"optimizer": "math:pi"}, "optimizer"),
        ({"optimizer": "<plain>"}, "optimizer"),
        ({"optimizer": torch.optim.NAdam, "optimizer_options": {"lr": 0.1}}, "set training.lr"),
    ],
)
def test_what_is_no_optimizer_is_explained(fields, message):
    with pytest.raises(ExperimentError) as caught:
        make_optimizer(Training(**fields), nn.Linear(3, 2))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        (lr_scheduler.StepLR, {"step_size": 4, "gamma": 0.5}),
        ("torch.optim.lr_scheduler:ExponentialLR", {"gamma": 0.9}),
        (lr_scheduler.OneCycleLR, {"max_lr": 0.4, "total_steps": 12}),
    ],
)
def test_torchs_schedulers_give_the_rates_they_give_in_torch(schedule, options):
    training = Training(lr=0.1, epochs=3, schedule=schedule, schedule_options=options)
    ours = [plan_lr_schedule(training, steps_per_epoch=4).at(step) for step in range(12)]
    made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    kind = lr_scheduler.ExponentialLR if isinstance(schedule, str) else schedule
    scheduler, theirs = kind(made, **options), []
    for step in range(12):
        theirs.append(made.param_groups[0]["lr"])
        made.step()
        if step < 11:
            scheduler.step()
    assert ours == pytest.approx(theirs)


def test_a_scheduler_may_ask_for_the_steps_and_starts_after_the_warm_up():
    def made(optimizer, steps, steps_per_epoch):
        assert (steps, steps_per_epoch) == (8, 4)
        return lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=steps)

    lr_schedule = plan_lr_schedule(
        Training(lr=1.0, epochs=3, warmup=1.0, schedule=made), steps_per_epoch=4, lr_scale=2.0
    )
    assert [lr_schedule.at(step) for step in range(4)] == pytest.approx([0.4, 0.8, 1.2, 1.6])
    assert [lr_schedule.at(step) for step in range(4, 12)] == pytest.approx([2 - step / 4 for step in range(8)])


class Halving(lr_scheduler.ReduceLROnPlateau):
    """Halves the rate after each epoch whose value is above 1."""

    def step(self, value):
        self.optimizer.param_groups[0]["lr"] *= 0.5 if value > 1 else 1


@pytest.mark.parametrize(
    ("kind", "options", "metric", "rates"),
    [
        (lr_scheduler.ReduceLROnPlateau, {"patience": 1, "factor": 0.1}, None, [1, 1, 1, 1, 0.1]),
        (lr_scheduler.ReduceLROnPlateau, {"patience": 0, "factor": 0.1, "mode": "max"}, 0.5, [1, 1, 0.1, 0.01, 1e-3]),
        (Halving, {}, None, [1, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_a_scheduler_that_wants_a_metric_is_told_it_after_each_epoch(kind, options, metric, rates):
    training = Training(lr=2.0, epochs=5, schedule=kind, schedule_options=options)
    planned, resumed = (plan_lr_schedule(training, steps_per_epoch=3, lr_scale=0.5) for _ in range(2))
    assert planned.wants_metric
    found = []
    for epoch, loss in enumerate((2.0, 0.7, 0.8, 0.9, 0.9)):
        if epoch == 3:
            resumed.load(planned.state())
            planned = resumed
        found += [planned.at(3 * epoch + step) for step in range(3)]
        planned.observe(loss, metric)
    assert found == pytest.approx([rate for rate in rates for _ in range(3)])


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("_workers_with_imports")
@pytest.mark.parametrize("fields", [{"workers": 1}, {"workers": 2}, {"workers": 2, "engine": "one-device"}])
def test_the_rate_of_a_run_falls_where_its_loss_does_not(fields, tmp_path):
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    seen = []
    tenfold.train(
        model=lambda: nn.Linear(3, 1),
        data=(x, torch.zeros(64) + 5),
        lr=1e-9,
        lr_scaling="none",
        optimizer="sgd",
        schedule=lr_scheduler.ReduceLROnPlateau,
        schedule_options={"patience": 0, "factor": 0.5, "threshold": 0.5, "eps": 0.0},
        epochs=4,
        listen=lambda event: seen.append(event.value) if getattr(event, "name", "") == "lr" else None,
        runs=tmp_path,
        progress=False,
        **fields,
    )
    assert [rate / 1e-9 for rate in seen] == pytest.approx([1, 1, 0.5, 0.25])


def test_a_function_of_the_progress_is_a_schedule():
    lr_schedule = plan_lr_schedule(
        Training(lr=1.0, epochs=1, schedule=lambda progress: 1 - progress / 2), steps_per_epoch=4
    )
    assert [lr_schedule.at(step) for step in range(5)] == [1.0, 0.875, 0.75, 0.625, 0.5]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedule": lr_scheduler.StepLR}, "cannot be created: TypeError"),
        ({"schedule": lambda optimizer: 3}, "scheduler"),
        ({"schedule": lambda progress: {}["x"]}, "failed at progress 0: KeyError"),
        ({"schedule": lambda x: torch.optim.lr_scheduler.ReduceLROnPlateau(x)}, "name the argument optimizer"),
        (
            {"schedule": "cosine", "schedule_options": {"a": 1}},
            "schedule",
        ),
        ({"schedule": "<made>"}, "schedule"),
    ],
)
def test_what_is_no_schedule_is_explained(fields, message):
    with pytest.raises(ExperimentError) as caught:
        plan_lr_schedule(Training(**fields), steps_per_epoch=4).at(0)
    assert message in str(caught.value)


def test_a_function_of_the_epoch_is_refused_for_new_runs_only():
    training = Training(lr=1.0, epochs=1, schedule=lambda epoch: 1 - epoch)
    with pytest.raises(ExperimentError, match="epoch"):
        check_own_schedule(training)
    assert plan_lr_schedule(training, steps_per_epoch=4).at(1) == 0.75


@pytest.mark.parametrize(("size", "warned"), [(1, True), (30, False)])
def test_a_scheduler_that_was_meant_to_be_stepped_once_an_epoch_is_warned_about(size, warned):
    options = {"step_size": size, "gamma": 0.7}
    training = Training(epochs=14, schedule=lr_scheduler.StepLR, schedule_options=options)
    problem = plan_lr_schedule(training, steps_per_epoch=30).problem(30)
    assert ("stepped after every training step, not every epoch, and an epoch has 30 steps" in problem) is warned
    assert plan_lr_schedule(Training(schedule="cosine"), steps_per_epoch=30).problem(30) == ""
