"""scikit-learn's scorers by name: the numbers that its functions give for the network's answers."""

import pytest
import torch
from looped import looped

from sklearn import metrics
from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Experiment, Training
from tenfold.training import METRICS, choose_metrics
from tenfold.training.metrics import OF_NUMBERS, ranking_metric, scorer

torch.manual_seed(0)


LABELS = torch.arange(60) % 3


LOGITS = torch.randn(60, 3) + torch.nn.functional.one_hot(LABELS, 3)


BINARY = (LABELS > 0).long()


def score(name, outputs, targets, classes=3):
    return float(choose_metrics(Training(metrics=[name]), classes)[name](outputs, targets))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f1_macro", metrics.f1_score(LABELS, LOGITS.argmax(1), average="macro")),
        ("balanced_accuracy", metrics.balanced_accuracy_score(LABELS, LOGITS.argmax(1))),
        ("roc_auc_ovr", metrics.roc_auc_score(LABELS, LOGITS.softmax(1), multi_class="ovr")),
        ("neg_log_loss", -metrics.log_loss(LABELS, LOGITS.double().softmax(1))),
    ],
)
def test_classes(name, expected):
    assert score(name, LOGITS, LABELS) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("targets", [BINARY, BINARY.float()], ids=["labels", "floats"])
def test_two_classes_by_one_output(targets):
    outputs = LOGITS[:, 1:2]
    assert score("roc_auc", outputs, targets, 2) == pytest.approx(metrics.roc_auc_score(BINARY, outputs[:, 0]))
    assert score("f1", outputs, targets, 2) == pytest.approx(metrics.f1_score(BINARY, outputs[:, 0] > 0))


def test_two_classes_by_two_outputs():
    expected = metrics.roc_auc_score(BINARY, LOGITS[:, 1] - LOGITS[:, 0])
    assert score("roc_auc", LOGITS[:, :2], BINARY, 2) == pytest.approx(expected)


def test_numbers():
    targets = torch.randn(60)
    assert score("r2", LOGITS[:, :1], targets, None) == pytest.approx(metrics.r2_score(targets, LOGITS[:, 0]))
    expected = -metrics.mean_absolute_error(targets, LOGITS[:, 0])
    assert score("neg_mean_absolute_error", LOGITS[:, 0], targets, None) == pytest.approx(expected)


@pytest.mark.parametrize("targets", [LABELS, BINARY, BINARY.float()], ids=["counts", "0 and 1", "as floats"])
def test_scorers_of_numbers_get_the_numbers_whatever_the_targets(targets):
    outputs = LOGITS[:, :1]
    assert score("r2", outputs, targets) == pytest.approx(metrics.r2_score(targets, outputs[:, 0]))
    squared = score("neg_mean_squared_error", outputs, targets)
    assert squared == pytest.approx(-(score("rmse", outputs, targets) ** 2))


def test_numbers_of_several_outputs():
    several = torch.stack([BINARY, 1 - BINARY], dim=1).float()
    assert score("r2", LOGITS[:, :2], several, None) == pytest.approx(metrics.r2_score(several, LOGITS[:, :2]))


def test_scorers_of_numbers_compare_labels_where_the_outputs_are_of_classes():
    expected = -metrics.mean_absolute_error(LABELS, LOGITS.argmax(1))
    assert score("neg_mean_absolute_error", LOGITS, LABELS) == pytest.approx(expected)


def test_every_scorer_of_numbers_is_known_by_its_name():
    of_regression = {name for name in metrics.get_scorer_names() if "_regression" in judged(name)}
    assert of_regression == {name for name in metrics.get_scorer_names() if name.startswith(OF_NUMBERS)}


def judged(name):
    return metrics.get_scorer(name)._score_func.__module__


def test_the_built_in_ones_come_first():
    assert choose_metrics(Training(metrics=["accuracy"]), 3)["accuracy"].function is METRICS["accuracy"]


def test_a_wrong_name_finds_the_nearest():
    with pytest.raises(ExperimentError, match="f1_macro"):
        Experiment(metrics=["f1_macr"])


def test_several_labels_per_sample_have_scores():
    logits, labels = (
        torch.tensor([[1.0, -1, 2], [-1, 2, -3], [1, 1, -1]]),
        torch.tensor([[1.0, 0, 1], [0, 1, 1], [1, 1, 0]]),
    )
    assert scorer("f1_macro")(logits, labels) == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert scorer("roc_auc")(logits, labels) == pytest.approx(5 / 6, abs=0.2)


def test_a_score_of_two_classes_names_those_of_many():
    with pytest.raises(ModelError, match="f1_macro"):
        scorer("f1")(torch.eye(3), torch.arange(3))


OUTPUTS = torch.tensor([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 0.0, 0.0]])


TARGETS = torch.tensor([[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


@looped(
    ("name", "value"),
    [
        ("precision_at_1", 1 / 3),
        ("precision_at_3", 2 / 9),
        ("recall_at_3", (1 + 0) / 2),
        ("map_at_3", ((1 + 2 / 3) / 2 + 0) / 2),
        ("ndcg_at_3", ((1 + 1 / 2) / (1 + 1 / 1.5849625) + 0) / 2),
        ("recall_at_99", 1.0),
    ],
)
def test_values_computed_by_hand(name, value):
    metric = ranking_metric(name)
    assert metric is not None
    assert float(metric(OUTPUTS, TARGETS)) == pytest.approx(value, rel=1e-5)


def test_any_number_may_follow_the_name():
    experiment = Experiment(metrics=["ndcg_at_7", "precision_at_25"])
    assert list(choose_metrics(experiment.training, None)) == ["ndcg_at_7", "precision_at_25"]
    assert ranking_metric("accuracy") is None
    with pytest.raises(ExperimentError, match="unknown metric"):
        Experiment(metrics=["precision_at_0"])


def test_labels_are_needed():
    metric = ranking_metric("precision_at_3")
    assert metric is not None
    with pytest.raises(ModelError, match="ranks the labels"):
        metric(OUTPUTS, TARGETS[:, 0])
