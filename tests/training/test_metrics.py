"""Metrics from sums: exact, the same however samples are divided, and equal to scikit-learn's."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import get_scorer, get_scorer_names
from torch import nn
from torch.nn import functional

from tenfold.common.metric_traits import METRICS, metric_traits
from tenfold.errors import ModelError
from tenfold.experiment import Training
from tenfold.training import choose_loss, choose_metrics, measure
from tenfold.training.metrics import ExactSum, add_sums

law = settings(deadline=None, derandomize=True, max_examples=60)
GENERATOR = torch.Generator().manual_seed(3)
LABELS = torch.randint(0, 4, (90,), generator=GENERATOR)
LOGITS = torch.randn(90, 4, generator=GENERATOR) + functional.one_hot(LABELS, 4)
NUMBERS = 3e5 + 1e5 * torch.randn(90, generator=GENERATOR)
CUTS = ([30, 60], [1, 2, 50], [89])


def shares(*tensors, cuts):
    return list(zip(*(torch.tensor_split(tensor, cuts) for tensor in tensors), strict=True))


def value_from_shares(measured, outputs, targets, cuts):
    """Return a loss or metric from the sums of several shares."""
    sums = {}
    for said, true in shares(outputs, targets, cuts=cuts):
        sums = add_sums(sums, measured.sums(said, true))
    return measured.value(sums)


@law
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40), st.integers(0, 40))
def test_sums_are_exact_and_do_not_depend_on_the_parallel(numbers, cut):
    values = torch.tensor(numbers, dtype=torch.float64)
    whole = ExactSum.of(values)
    assert whole.fractions == [sum(map(Fraction, numbers))]
    assert ExactSum.of(values[:cut]) + ExactSum.of(values[cut:]) == whole
    assert ExactSum.of(values.flip(0)) == whole


def test_sums_have_columns_and_keep_what_is_no_number():
    columns = ExactSum.of(torch.tensor([[1.0, math.inf, 0.5], [2.0, 1.0, math.nan]]))
    assert columns.fractions == [3, 1, Fraction(1, 2)]
    assert columns.odd[:2] == (0.0, math.inf)
    assert math.isnan(columns.odd[2])
    assert not columns.is_finite
    assert ExactSum.of(torch.tensor([math.inf, 1.0])).divided_by(2) == math.inf
    assert math.isnan(ExactSum.of(torch.tensor([1.0])).divided_by(0))


class Classes(ClassifierMixin, BaseEstimator):
    """Reads logits, as a scorer of scikit-learn asks a fitted estimator."""

    def __init__(self, count=2):
        self.count = count
        self.classes_ = np.arange(count)

    def predict(self, logits):
        return self.predict_proba(logits).argmax(1)

    def predict_proba(self, logits):
        return torch.from_numpy(logits).double().softmax(1).numpy()


class Numbers(RegressorMixin, BaseEstimator):
    fitted_ = True

    def predict(self, outputs):
        return outputs


def expected(name, estimator, outputs, targets):
    """Return scikit-learn's value; None where the scorer is not for such data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(get_scorer(name)(estimator, outputs.numpy(), targets.numpy()))
        except (ValueError, AttributeError):
            return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "outputs", "targets"),
    [
        (Classes(4), LOGITS, LABELS),
        (Classes(2), LOGITS[:, :2], LABELS % 2),
        (Numbers(), NUMBERS + 1e4 * LOGITS[:, 0], NUMBERS),
        (Numbers(), LOGITS.abs() + 0.1, LOGITS.flip(0).abs() + 0.1),
        (Numbers(), NUMBERS, torch.full((90,), 3e5)),
    ],
    ids=["classes", "two classes", "numbers", "columns", "constant numbers"],
)
def test_every_scorer_has_scikit_learns_value_however_samples_are_divided(estimator, outputs, targets):
    tried = 0
    for name in get_scorer_names():
        theirs = expected(name, estimator, outputs.double(), targets)
        if theirs is None or name == "accuracy":
            continue
        metric = choose_metrics(Training(metrics=[name]), None)[name]
        assert float(metric(outputs, targets)) == pytest.approx(theirs, rel=1e-5, abs=1e-9), name
        traits = metric_traits(name)
        assert metric.needs_all_outputs == (traits is None or traits.combines == "outputs")
        if not metric.needs_all_outputs:
            tried += 1
            for cuts in CUTS:
                assert value_from_shares(metric, outputs, targets, cuts) == metric(outputs, targets), name
    assert tried >= 6


@pytest.mark.filterwarnings("ignore")
@looped("mean", ["macro", "micro", "weighted", "samples"])
@looped("kind", ["f1", "precision", "recall", "jaccard"])
def test_several_labels_per_sample(mean, kind):
    labels = (torch.rand(90, 5, generator=torch.Generator().manual_seed(1)) < 0.3).float()
    logits = torch.randn(90, 5, generator=torch.Generator().manual_seed(2)) + labels
    metric = choose_metrics(Training(loss="bce", metrics=[f"{kind}_{mean}"]), None)[f"{kind}_{mean}"]
    score = get_scorer(f"{kind}_{mean}")._score_func
    theirs = score(labels.numpy().astype(int), (logits > 0).numpy().astype(int), average=mean)
    assert metric(logits, labels) == pytest.approx(theirs)
    assert value_from_shares(metric, logits, labels, [10, 44]) == metric(logits, labels)


def test_scores_of_one_label_refuse_several():
    metric = choose_metrics(Training(loss="bce", metrics=["balanced_accuracy"]), None)["balanced_accuracy"]
    with pytest.raises(ModelError, match="one label per sample"):
        metric(torch.randn(4, 3), torch.ones(4, 3))


@looped("name", [*METRICS, "precision_at_2", "recall_at_2", "map_at_2", "ndcg_at_2"])
def test_built_in_metrics_do_not_depend_on_the_parallel(name):
    metric = choose_metrics(Training(metrics=[name]), None)[name]
    if metric.needs_all_outputs:
        assert name == "word_error_rate"
        return
    outputs, targets = LOGITS, LABELS
    if name in ("mae", "rmse"):
        outputs, targets = LOGITS, LOGITS.flip(0)
    elif "_at_" in name:
        targets = functional.one_hot(LABELS, 4)
    for cuts in CUTS:
        assert value_from_shares(metric, outputs, targets, cuts) == metric(outputs, targets)


def test_perplexity_is_the_exponential_of_the_mean_cross_entropy_over_labels():
    logits, words = torch.randn(6, 5, 7), torch.randint(0, 7, (6, 5))
    words[0, 1:] = -100
    metric = choose_metrics(Training(metrics=["perplexity"]), 7)["perplexity"]
    loss = functional.cross_entropy(logits.movedim(-1, 1), words)
    assert metric(logits, words) == pytest.approx(math.exp(loss), rel=1e-6)
    with pytest.raises(ModelError, match="one output per class"):
        metric(torch.randn(6, 1), torch.randn(6))


WEIGHTS = torch.tensor([1.0, 0.2, 5.0, 0.7])
SKIPPED = torch.where(torch.arange(90) % 3 == 0, -100, LABELS)


@looped(
    ("loss", "outputs", "targets"),
    [
        (None, LOGITS, LABELS),
        ("cross-entropy", LOGITS, LOGITS.flip(0).softmax(1)),
        (nn.CrossEntropyLoss(weight=WEIGHTS), LOGITS, LABELS),
        (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), LOGITS, SKIPPED),
        (nn.CrossEntropyLoss(ignore_index=2), LOGITS, LABELS),
        (nn.CrossEntropyLoss(reduction="sum"), LOGITS, LABELS),
        (nn.CrossEntropyLoss(), LOGITS[:, None].expand(90, 3, 4), LABELS[:, None].expand(90, 3)),
        (nn.NLLLoss(weight=WEIGHTS), LOGITS.log_softmax(1), LABELS),
        ("torch.nn.functional:nll_loss", LOGITS.log_softmax(1), LABELS),
        ("mse", LOGITS, LOGITS.flip(0)),
        ("l1", LOGITS[:, :1], LOGITS[:, 1]),
        ("bce", LOGITS[:, 0], LABELS % 2),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), LOGITS[:, 0], LABELS % 2),
        (nn.SmoothL1Loss, LOGITS, LOGITS.flip(0)),
        (nn.HuberLoss(reduction="none"), LOGITS, LOGITS.flip(0)),
        ("torch.nn.functional:huber_loss", LOGITS, LOGITS.flip(0)),
        (nn.KLDivLoss(reduction="batchmean"), LOGITS.log_softmax(1), LOGITS.flip(0).softmax(1)),
        (nn.MultiMarginLoss(), LOGITS, LABELS),
    ],
)
def test_losses_from_shares_are_those_of_all_samples(loss, outputs, targets):
    chosen = choose_loss(Training(loss=loss), 4)
    assert not chosen.needs_all_outputs
    assert not chosen.needs_whole_batches
    whole = float(chosen(outputs, targets).mean()) / (len(targets) if chosen.is_sum else 1)
    for cuts in CUTS:
        assert value_from_shares(chosen, outputs, targets, cuts) == pytest.approx(whole, rel=1e-5)
        assert value_from_shares(chosen, outputs, targets, cuts) == measure(outputs, targets, chosen, {})["loss"]


def test_a_loss_of_your_own_is_averaged_over_batches_as_in_training():
    chosen = choose_loss(Training(loss=lambda outputs, targets: (outputs - targets).abs().max()), None)
    outputs, targets = torch.tensor([1.0, 2.0, 9.0]), torch.zeros(3)
    assert chosen.needs_whole_batches
    assert value_from_shares(chosen, outputs, targets, [2]) == pytest.approx((2 * 2.0 + 9.0) / 3)
