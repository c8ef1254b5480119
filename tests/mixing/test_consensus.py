from math import ceil, log2

import numpy as np
import pytest
from looped import looped

from tenfold.mixing import Strategy
from tenfold.mixing.strategies import AllReduce, Butterfly, HoppingRing, NoMixing, Ring

COLUMNS = [Butterfly(), HoppingRing(), HoppingRing(hops="linear"), Ring(), Ring(sides=1)]
AFTER_LG_N_ROUNDS = {
    4: [0, 0, 0, 0.11, 0.50],
    6: [0, 0.22, 0.25, 0.30, 0.65],
    8: [0, 0, 0.25, 0.52, 0.79],
    12: [0, 0.21, 0.30, 0.69, 0.87],
    16: [0, 0, 0.53, 0.81, 0.93],
}


def consensus(strategy: Strategy, n: int, rounds: int) -> float:
    """Return || M_{rounds-1} ... M_1 M_0 - 11^T/n ||_2, the largest share of any disagreement that survives."""
    left = np.eye(n)
    for r in range(rounds):
        left = strategy.round(r, n).matrix() @ left
    return float(np.linalg.norm(left - 1 / n, ord=2))


@looped("n", AFTER_LG_N_ROUNDS)
def test_what_is_left_after_lg_n_rounds(n):
    left = [consensus(strategy, n, ceil(log2(n))) for strategy in COLUMNS]
    assert left == pytest.approx(AFTER_LG_N_ROUNDS[n], abs=0.0051)


def test_the_ends_of_the_scale():
    assert consensus(AllReduce(), 5, 1) == pytest.approx(0, abs=1e-12)
    assert consensus(NoMixing(), 5, 10) == pytest.approx(1)
    assert consensus(Ring(), 5, 0) == pytest.approx(1)
    assert consensus(NoMixing(), 1, 3) == pytest.approx(0)
