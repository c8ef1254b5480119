"""scikit-learn's scorers by name: the numbers that its functions give for the network's answers."""

import pytest
import torch
from sklearn import metrics

from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment, Training
from tenfold.training import METRICS, choose_metrics

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


def test_the_built_in_ones_come_first():
    assert choose_metrics(Training(metrics=["accuracy"]), 3)["accuracy"] is METRICS["accuracy"]


def test_a_wrong_name_finds_the_nearest():
    with pytest.raises(ExperimentError, match="unknown metric 'f1_macr'; did you mean 'f1_macro'"):
        Experiment(metrics=["f1_macr"])
