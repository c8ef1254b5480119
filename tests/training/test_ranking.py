"""Metrics of the labels that are ranked highest."""

import pytest
import torch
from looped import looped

from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Experiment
from tenfold.training import choose_metrics
from tenfold.training.scorers import ranking_metric

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
