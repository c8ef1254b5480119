"""Built-in metrics that are shares, between 0 and 1, which people also give in percent."""

from tenfold.common.catalog import RANKING_METRIC

_MEANS = ("", "_macro", "_micro", "_weighted", "_samples")
SHARES = {
    *("accuracy", "phone_accuracy", "balanced_accuracy", "top_k_accuracy", "average_precision"),
    *("roc_auc", "roc_auc_ovr", "roc_auc_ovo", "roc_auc_ovr_weighted", "roc_auc_ovo_weighted"),
    *(f"{metric}{mean}" for metric in ("f1", "precision", "recall", "jaccard") for mean in _MEANS),
}


def beyond_share(metric: str, value: float) -> str:
    """Return what is wrong with a value for a metric that is a share; nothing where it is possible."""
    if 0 <= value <= 1 or not (metric in SHARES or RANKING_METRIC.fullmatch(metric)):
        return ""
    meant = f"; did you mean {value / 100:g}?" if 1 < value <= 100 else ""
    return f"{metric} is between 0 and 1{meant}"
