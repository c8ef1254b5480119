from looped import looped

from tenfold.report.scores import direction, higher_is_better, main_metric, ordered


@looped("name", ["accuracy", "f1_macro", "roc_auc_ovr", "r2", "neg_mean_squared_error", "precision_at_10", "closeness"])
def test_more_is_better(name):
    assert higher_is_better(name)
    assert direction(name) == "higher is better"


@looped("name", ["loss", "mae", "rmse", "max_error", "word_error_rate", "my_mse", "HammingLoss"])
def test_less_is_better(name):
    assert not higher_is_better(name)
    assert direction(name) == "lower is better"


@looped(
    ("names", "main"),
    [(["loss", "accuracy", "f1"], "accuracy"), (["loss", "f1", "mae"], "f1"), (["loss"], "loss"), ([], None)],
)
def test_the_metric_to_judge_by(names, main):
    assert main_metric(names) == main


def test_the_accuracy_comes_first_and_the_loss_last():
    assert list(ordered({"loss": 1.0, "f1": 0.5, "accuracy": 0.9})) == ["accuracy", "f1", "loss"]
