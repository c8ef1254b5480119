"""How much disagreement a strategy leaves: what planning and the documentation compare strategies by."""

import numpy as np

from tenfold.mixing.base import Strategy


def consensus(strategy: Strategy, n: int, rounds: int) -> float:
    """Return || M_{rounds-1} ... M_1 M_0 - 11^T/n ||_2, the largest share of any disagreement that survives.

    0 means that all replicas agree on the mean, 1 that some disagreement is left untouched.
    """
    left = np.eye(n)
    for r in range(rounds):
        left = strategy.round(r, n).matrix() @ left
    return float(np.linalg.norm(left - 1 / n, ord=2))
