"""Metrics that are shares, between 0 and 1, which people also give in percent."""

import re

SHARE = re.compile(r".*accuracy|(f1|precision|recall|jaccard|roc_auc|average_precision|map|ndcg)(_.*)?")


def beyond_share(metric: str, value: float) -> str:
    """Return what is wrong with a value for a metric that is a share; nothing where it is possible."""
    if 0 <= value <= 1 or not SHARE.fullmatch(metric):
        return ""
    meant = f"; did you mean {value / 100:g}?" if 1 < value <= 100 else ""
    return f"{metric} is between 0 and 1{meant}"
