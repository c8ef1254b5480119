"""Metrics of tasks with many labels, of the M labels that are ranked highest for each sample.

With rel_k = 1 where the label at rank k is right, R right labels in all, and samples without any left out of the last
three:

    precision at M    sum_{k<=M} rel_k / M
    recall at M       sum_{k<=M} rel_k / R
    map at M          sum_{k<=M} rel_k precision(k) / min(M, R)
    ndcg at M         sum_{k<=M} rel_k / log2(k + 1), divided by the largest value that it can have
"""

import torch
from torch import Tensor

from tenfold.common.metric_table import RANKING_METRIC
from tenfold.errors import ModelError
from tenfold.training.metrics import SumMetric, mean_of


def ranking_metric(name: str) -> SumMetric | None:
    """Return the metric of a name such as "precision_at_10"; None if it is not one of these."""
    found = RANKING_METRIC.fullmatch(name)
    if found is None:
        return None
    kind, m = found[1], int(found[2])

    def values(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape != targets.shape or outputs.ndim != 2:
            raise ModelError(
                f"{name} ranks the labels of each sample: outputs {tuple(outputs.shape)} and targets "
                f"{tuple(targets.shape)} should both be (samples, labels)"
            )
        return _KINDS[kind](_relevant(outputs, targets, m), (targets > 0.5).sum(1).double())

    return mean_of(values)


def _relevant(outputs: Tensor, targets: Tensor, m: int) -> Tensor:
    """Return for each sample which of the m highest ranked labels are right."""
    top = outputs.topk(min(m, outputs.shape[1]), dim=1).indices
    return (targets.gather(1, top) > 0.5).double()


def _precision(relevant: Tensor, _right: Tensor) -> Tensor:
    return relevant


def _recall(relevant: Tensor, right: Tensor) -> Tensor:
    some = right > 0
    return relevant[some].sum(1) / right[some]


def _average_precision(relevant: Tensor, right: Tensor) -> Tensor:
    some, m = right > 0, relevant.shape[1]
    precision = relevant.cumsum(1) / torch.arange(1, m + 1, device=relevant.device)
    return (relevant * precision).sum(1)[some] / right[some].clamp(max=m)


def _discounted_gain(relevant: Tensor, right: Tensor) -> Tensor:
    some, m = right > 0, relevant.shape[1]
    discounts = 1 / torch.log2(torch.arange(2, m + 2, device=relevant.device, dtype=torch.float64))
    best = discounts.cumsum(0)[right[some].clamp(max=m).long() - 1]
    return (relevant * discounts).sum(1)[some] / best


_KINDS = {"precision": _precision, "recall": _recall, "map": _average_precision, "ndcg": _discounted_gain}
"""What is averaged: over samples, and for the precision over ranks as well."""
