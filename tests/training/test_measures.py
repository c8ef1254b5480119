import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.training import LOSSES, METRICS, choose_loss, choose_metrics

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


def test_the_loss_is_chosen_by_the_targets_or_by_name():
    assert choose_loss(Training(), 10) is LOSSES["cross-entropy"]
    assert choose_loss(Training(), None) is LOSSES["mse"]
    assert choose_loss(Training(loss="l1"), 10) is LOSSES["l1"]
    assert choose_loss(Training(loss="torch.nn.functional:huber_loss"), None) is functional.huber_loss
    assert choose_loss(Training(loss=worst), None) is worst


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.CrossEntropyLoss(), "torch.nn:CrossEntropyLoss"])
def test_torchs_loss_classes_work_as_losses(loss):
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = functional.cross_entropy(outputs, targets)
    assert torch.equal(choose_loss(Training(loss=loss), 3)(outputs, targets), expected)


def test_metrics_are_chosen_by_the_targets_or_by_name():
    assert choose_metrics(Training(), 10) == {"accuracy": METRICS["accuracy"]}
    assert choose_metrics(Training(), None) == {}
    assert choose_metrics(Training(loss="mse"), 10) == choose_metrics(Training(loss="l1"), 2) == {}
    assert choose_metrics(Training(loss="bce"), 2) == {"accuracy": METRICS["accuracy"]}
    chosen = Training(metrics=["mae", worst, "torch.nn.functional:l1_loss"])
    assert choose_metrics(chosen, None) == {"mae": METRICS["mae"], "worst": worst, "l1_loss": functional.l1_loss}
    assert choose_metrics(Training(metrics={"largest": worst}), None) == {"largest": worst}
    assert choose_metrics(Training(metrics=worst), 10) == {"worst": worst}
    assert choose_metrics(Training(metrics="mae"), 10) == {"mae": METRICS["mae"]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "<lambda>"}, "the loss <lambda> was given as a Python object; pass it again"),
        ({"loss": "math:pi"}, "the loss math:pi is a float; it must be f"),
        ({"loss": "math:nothing"}, "'math' has no 'nothing'"),
        ({"metrics": ["<worst>"]}, "the metric <worst> was given as a Python object"),
        ({"metrics": ["mae", "mae"]}, "a metric cannot be called 'mae', another metric has it"),
        ({"metrics": [lambda o, t: 1, lambda o, t: 2]}, "a metric cannot be called 'lambda', another metric has it"),
        ({"metrics": {"loss": worst}}, "a metric cannot be called 'loss', the loss goes by it"),
    ],
)
def test_what_is_no_measure_is_explained(fields, message):
    training = Training(**fields)
    with pytest.raises(ExperimentError) as caught:
        choose_loss(training, 3), choose_metrics(training, 3)
    assert message in str(caught.value)
