import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from torch import nn
from torch.nn import functional

from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Training
from tenfold.training import LOSSES, METRICS, choose_loss, choose_metrics
from tenfold.training.measures import check_labels, check_target, describe_failure, output_kind

law = settings(deadline=None, derandomize=True, max_examples=40)


def worst(outputs, targets):
    return (outputs - targets).abs().max()


@law
@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 1000))
def test_accuracy_is_the_share_of_right_answers(samples, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(samples, classes, generator=generator)
    targets = torch.randint(classes, (samples,), generator=generator)
    right = sum(int(row.argmax()) == int(target) for row, target in zip(outputs, targets, strict=True))
    assert float(METRICS["accuracy"](outputs, targets)) == pytest.approx(right / samples)


@law
@given(st.lists(st.tuples(st.floats(-5, 5, width=32), st.booleans()), min_size=1, max_size=20))
@pytest.mark.parametrize("shapes", [((-1,), (-1,)), ((-1, 1), (-1,)), ((-1, 1), (-1, 1))])
def test_accuracy_of_a_single_output_goes_by_its_sign(shapes, answers):
    outputs = torch.tensor([output for output, _ in answers]).reshape(shapes[0])
    expected = sum((output > 0) == target for output, target in answers) / len(answers)
    for kind in (torch.float32, torch.int64):
        targets = torch.tensor([target for _, target in answers]).to(kind).reshape(shapes[1])
        assert float(METRICS["accuracy"](outputs, targets)) == pytest.approx(expected)


def test_accuracy_of_answers_with_places_compares_every_place():
    outputs = torch.tensor([[[5.0, 0.0], [0.0, 5.0]]])
    assert float(METRICS["accuracy"](outputs, torch.tensor([[0, 1]]))) == 1.0
    assert float(METRICS["accuracy"](outputs, torch.tensor([[0, 0]]))) == 0.5


def test_positions_without_a_label_do_not_count_and_classes_may_come_last():
    outputs, targets = torch.randn(4, 5, 3), torch.randint(0, 3, (4, 5))
    targets[1, 2] = -100
    for name in ("accuracy", "f1_macro"):
        metric = choose_metrics(Training(metrics=[name]), 3)[name]
        known = targets != -100
        expected = metric(outputs[known], targets[known])
        assert float(metric(outputs, targets)) == pytest.approx(float(expected))
        assert float(metric(outputs.movedim(-1, 1), targets)) == pytest.approx(float(expected))
    loss = functional.cross_entropy(outputs.movedim(-1, 1), targets)
    assert torch.equal(choose_loss(Training(), 3)(outputs, targets), loss)


@pytest.mark.parametrize("loss", [nn.BCELoss(), "torch.nn:BCELoss", "torch.nn.functional:binary_cross_entropy"])
def test_metrics_of_a_network_that_ends_with_a_sigmoid(loss):
    logits, targets = torch.randn(50, 1), (torch.arange(50) % 2).float()
    training = Training(loss=loss, metrics=["accuracy", "f1", "mae"])
    measured = {name: item(logits.sigmoid(), targets) for name, item in choose_metrics(training, None).items()}
    expected = choose_metrics(Training(loss="bce", metrics=["accuracy", "f1"]), None)
    for name, metric in expected.items():
        assert float(measured[name]) == pytest.approx(float(metric(logits, targets)))
    assert float(measured["mae"]) == pytest.approx(float((logits.sigmoid()[:, 0] - targets).abs().mean()))
    assert output_kind(training, None, logits.sigmoid()) == "probability"


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), nn.MSELoss, nn.SmoothL1Loss()])
def test_torchs_losses_of_floats_take_labels(loss):
    outputs, targets = torch.randn(6, 1), torch.arange(6) % 2
    function = loss() if isinstance(loss, type) else loss
    assert torch.equal(choose_loss(Training(loss=loss), 2)(outputs, targets), function(outputs[:, 0], targets.float()))


def mse_loss(outputs, targets):
    return functional.mse_loss(outputs.softmax(1), functional.one_hot(targets, 3).float())


class OneHotLoss(nn.MSELoss):
    def forward(self, outputs, targets):
        return mse_loss(outputs, targets)


def test_losses_of_your_own_may_be_called_as_those_of_torch():
    outputs, targets = torch.randn(6, 3), torch.arange(6) % 3
    for loss in (mse_loss, OneHotLoss()):
        assert output_kind(Training(loss=loss), 3, outputs) == "classes"
        assert list(choose_metrics(Training(loss=loss), 3)) == ["accuracy"]
        assert torch.equal(choose_loss(Training(loss=loss), 3)(outputs, targets), mse_loss(outputs, targets))


def test_a_logit_for_each_position():
    outputs, masks = torch.randn(4, 1, 5, 5), torch.randint(0, 2, (4, 5, 5))
    for loss, kind in (("bce", "logit"), (nn.BCEWithLogitsLoss(), "logit"), (nn.BCELoss(), "probability")):
        assert output_kind(Training(loss=loss), 2, outputs) == kind
    expected = ((outputs[:, 0] > 0) == masks.bool())[:, 1:].float().mean()
    masks[:, 0] = -100
    assert float(METRICS["accuracy"](outputs, masks)) == pytest.approx(float(expected))
    with pytest.raises(ExperimentError, match="position"):
        check_labels(Training(loss="bce"), masks)
    check_labels(Training(), masks)


def test_a_single_output_is_a_logit_of_two_classes_and_a_number_for_more():
    outputs = torch.randn(6, 1)
    assert output_kind(Training(loss=worst), 2, outputs) == "logit"
    assert output_kind(Training(loss=worst), 5, outputs) == "numbers"
    assert output_kind(Training(loss=nn.MSELoss()), 5) == "numbers"
    with pytest.raises(ModelError, match="labels from 0 to 4"):
        METRICS["accuracy"](outputs, torch.tensor([0, 1, 2, 3, 4, 0]))


@pytest.mark.parametrize("name", ["mae", "rmse"])
def test_errors_do_not_broadcast(name):
    outputs, targets = torch.tensor([[1.0], [5.0]]), torch.tensor([1.0, 2.0])
    expected = {"mae": 1.5, "rmse": 4.5**0.5}[name]
    assert float(METRICS[name](outputs, targets)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("mse", functional.mse_loss),
        ("l1", functional.l1_loss),
        ("bce", functional.binary_cross_entropy_with_logits),
    ],
)
def test_losses_of_columns_and_rows_are_those_of_equal_shapes(name, function):
    outputs, targets = torch.randn(6), torch.rand(6).round()
    expected = function(outputs, targets)
    assert torch.equal(LOSSES[name](outputs, targets), expected)
    assert torch.equal(LOSSES[name](outputs.reshape(6, 1), targets), expected)
    assert torch.equal(LOSSES[name](outputs.reshape(6, 1), targets.long()), expected)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.CrossEntropyLoss(), "torch.nn:CrossEntropyLoss"])
def test_torchs_loss_classes_work_as_losses(loss):
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = functional.cross_entropy(outputs, targets)
    assert torch.equal(choose_loss(Training(loss=loss), 3)(outputs, targets), expected)


def test_metrics_are_chosen_by_the_targets_or_by_name():
    def chosen_metrics(*choice):
        return {name: metric.function for name, metric in choose_metrics(*choice).items()}

    assert chosen_metrics(Training(), 10) == {"accuracy": METRICS["accuracy"]}
    assert chosen_metrics(Training(), None) == {}
    assert choose_metrics(Training(loss="mse"), 10) == choose_metrics(Training(loss="l1"), 2) == {}
    assert chosen_metrics(Training(loss="bce"), 2) == {"accuracy": METRICS["accuracy"]}
    chosen = Training(metrics=["mae", worst, "torch.nn.functional:l1_loss"])
    assert chosen_metrics(chosen, None) == {"mae": METRICS["mae"], "worst": worst, "l1_loss": functional.l1_loss}
    assert chosen_metrics(Training(metrics={"largest": worst}), None) == {"largest": worst}
    assert chosen_metrics(Training(metrics=worst), 10) == {"worst": worst}
    assert chosen_metrics(Training(metrics="mae"), 10) == {"mae": METRICS["mae"]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "<lambda>"}, "lambda"),
        ({"loss": "math:pi"}, "the loss math:pi is a float; it must be f"),
        ({"loss": "math:nothing"}, "'math' has no 'nothing'"),
        ({"metrics": ["<worst>"]}, "metric"),
        ({"metrics": ["mae", "mae"]}, "mae"),
        ({"metrics": [lambda o, t: 1, lambda o, t: 2]}, "lambda"),
        ({"metrics": {"loss": worst}}, "loss"),
    ],
)
def test_what_is_no_measure_is_explained(fields, message):
    training = Training(**fields)
    with pytest.raises(ExperimentError) as caught:
        choose_loss(training, 3), choose_metrics(training, 3)
    assert message in str(caught.value)


def squared(outputs, targets):
    return ((outputs - targets) ** 2).mean()


@looped("measure", [nn.MSELoss(), nn.MSELoss, squared, lambda o, t: ((o - t) ** 2).mean(), "mse"])
@looped("shapes", [((-1, 1), (-1,)), ((-1,), (-1, 1)), ((-1, 1, 1), (-1,)), ((-1, 1, 3), (-1, 3))])
def test_outputs_and_targets_are_aligned_before_any_loss_or_metric(measure, shapes):
    outputs, targets = torch.randn(12), torch.randn(12)
    expected = functional.mse_loss(outputs, targets)
    given = outputs.reshape(shapes[0]), targets.reshape(shapes[1])
    assert torch.equal(choose_loss(Training(loss=measure), None)(*given), expected)
    if measure != "mse":
        (metric,) = choose_metrics(Training(metrics=measure), None).values()
        assert torch.equal(metric(*given), expected)


@pytest.mark.filterwarnings("ignore:Using a target size")
@looped("loss", ["mse", "l1", "bce", nn.MSELoss(), squared])
@looped("shape", [(), (1, 3), (5, 3)])
def test_what_cannot_be_aligned_names_both_shapes(loss, shape):
    with pytest.raises((ModelError, RuntimeError)) as caught:
        choose_loss(Training(loss=loss), None)(torch.randn(shape), torch.randn(6))
    said = describe_failure(caught.value)
    assert str(shape) in said
    assert "(6,)" in said


def test_a_loss_may_compare_several_outputs_with_one_target():
    def likelihood(outputs, targets):
        return functional.gaussian_nll_loss(outputs[:, 0], targets, outputs[:, 1].exp())

    loss = choose_loss(Training(loss=likelihood), None)
    assert loss(torch.randn(6, 2), torch.randn(6)).ndim == 0


def test_accuracy_of_numbers_is_refused():
    with pytest.raises(ModelError, match="accuracy"):
        METRICS["accuracy"](torch.zeros(3, 1), torch.tensor([0.5, 1, 2]))


def test_one_hot_targets_have_one_class():
    outputs, targets = torch.tensor([[2.0, 1.0], [-1.0, -2.0], [1.0, 3.0]]), torch.tensor([[1.0, 0], [1, 0], [1, 0]])
    for loss in ("cross-entropy", torch.nn.CrossEntropyLoss(), torch.nn.CrossEntropyLoss):
        metric = choose_metrics(Training(loss=loss, metrics="accuracy"), None)["accuracy"]
        assert metric(outputs, targets) == pytest.approx(2 / 3)
        assert metric(outputs, targets.argmax(1)) == pytest.approx(2 / 3)
    several = choose_metrics(Training(loss="bce", metrics="accuracy"), None)["accuracy"]
    assert several(outputs, targets) == pytest.approx(1 / 2)


def test_a_target_that_a_share_cannot_reach_is_refused(monkeypatch):
    check_target(Training(), 10, 0.99)
    check_target(Training(metrics=["rmse"]), None, 99.0)
    check_target(Training(metrics={"accuracy": worst}), 10, 99.0)  # it may be in percent
    monkeypatch.setitem(METRICS.built_in, "my_accuracy", worst)
    check_target(Training(metrics=["my_accuracy"]), 10, 99.0)
    with pytest.raises(ExperimentError, match="0"):
        check_target(Training(), 10, 99.0)


def test_labels_given_as_floats_are_explained():
    with pytest.raises(RuntimeError) as caught:
        choose_loss(Training(loss="cross-entropy"), None)(torch.randn(4, 3), torch.tensor([0.0, 1.0, 2.0, 0.0]))
    assert "the targets are floats; give labels as integers: y.long()" in describe_failure(caught.value)
