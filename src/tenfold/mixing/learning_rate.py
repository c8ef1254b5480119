"""When a round is due, and how the learning rate follows the number of replicas."""

import math
from collections.abc import Callable

from tenfold.common.registry import Registry
from tenfold.mixing.base import require


def due(step: int, sync_every: int, post_local_until: int = 0) -> bool:
    """Say whether a round follows the `step`-th step (1, 2, ...).

    Every step up to `post_local_until`, every `sync_every` steps from there on (post-local SGD, Lin et al. 2020).
    """
    require(sync_every >= 1, f"sync_every is {sync_every}; it takes at least 1 step")
    return step <= post_local_until or (step - post_local_until) % sync_every == 0


MOST_BY_SQRT, BEYOND = 8, 2.0
"""Up to so many replicas sqrt(n) was found to work; the factor for more."""

LEARNING_RATE_SCALES: Registry[Callable[[int], float]] = Registry(
    "learning rate scale",
    {
        "auto": lambda n: math.sqrt(n) if n <= MOST_BY_SQRT else BEYOND,
        "none": lambda _: 1.0,
        "linear": float,
        "sqrt": math.sqrt,
    },
)


def learning_rate_scale(kind: str, n: int) -> float:
    """Return the factor for `n` replicas: 1 (none), n (linear, Goyal et al. 2017) or sqrt(n) (Krizhevsky 2014).

    Averaging n replicas that each take the same number of steps divides the effective learning rate by up to n; the
    factor gives it back. "auto" is sqrt(n) as far as that was found to work, up to 8 replicas, and 2 for more.
    """
    return LEARNING_RATE_SCALES[kind](n)
