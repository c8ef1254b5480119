"""The one table of metrics: directions, the main metric, shares."""

import pytest
from looped import looped
from sklearn.metrics import get_scorer_names

from tenfold.common.metric_traits import (
    METRICS,
    beyond_share,
    describe_direction,
    loss_last,
    lower_is_better,
    main_metric,
)

MORE = (
    *("accuracy", "r2", "neg_mean_squared_error", "neg_max_error", "precision_at_10", "my_f1", "AUC", "my_score"),
    *("d2_absolute_error_score", "distance_correlation", "log_likelihood", "neg_foo"),
)
LESS = (
    *("loss", "mae", "rmse", "perplexity", "word_error_rate", "error", "my_mse", "HammingLoss", "wer", "max_error"),
    *("dice_loss", "brier_score", "negative_log_likelihood", "neg_log_likelihood"),
)


@looped("name", MORE)
def test_more_is_better(name):
    assert lower_is_better(name) is False
    assert describe_direction(lower_is_better(name)) == "higher is better"


@looped("name", LESS)
def test_less_is_better(name):
    assert lower_is_better(name) is True
    assert describe_direction(lower_is_better(name)) == "lower is better"


def test_a_name_that_says_nothing_is_not_guessed_but_can_be_stated():
    assert lower_is_better("closeness") is None
    assert lower_is_better("false_negative_rate") is None
    assert describe_direction(None) == ""
    assert lower_is_better("closeness", True) is True
    assert lower_is_better("accuracy", True) is False


def test_scorers_of_scikit_learn_are_better_the_larger_they_are():
    listed = [name for name in get_scorer_names() if name not in METRICS and name != "max_error"]
    assert len(listed) > 30
    assert [name for name in listed if lower_is_better(name) is not False] == []


@looped(
    ("names", "main"),
    [(["loss", "f1", "accuracy"], "f1"), (["rmse", "mae"], "rmse"), (["loss"], "loss"), ([], None)],
)
def test_models_are_judged_by_the_first_metric_other_than_the_loss(names, main):
    assert main_metric(names) == main


def test_the_loss_comes_last():
    assert list(loss_last({"loss": 1.0, "f1": 0.5, "accuracy": 0.9})) == ["f1", "accuracy", "loss"]


@looped("name", ["accuracy", "f1_macro", "map_at_5", "roc_auc"])
def test_shares_lie_between_0_and_1(name):
    assert "did you mean 0.97" in beyond_share(name, 97)
    assert beyond_share(name, 0.97) == ""


def test_other_metrics_may_have_any_value():
    assert beyond_share("rmse", 97) == beyond_share("r2", -3) == beyond_share("mine", 5) == ""


def test_every_built_in_metric_can_be_imported():
    for name in METRICS:
        assert callable(METRICS[name])
    with pytest.raises(Exception, match="unknown metric"):
        METRICS["nothing"]
