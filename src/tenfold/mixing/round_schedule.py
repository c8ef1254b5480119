"""When rounds happen."""

from typing import overload

import numpy as np
from numpy.typing import NDArray

from tenfold.mixing.base import Strategy, require


@overload
def due(step: int, sync_every: int, local_after: int = 0) -> bool: ...
@overload
def due(step: NDArray[np.int64], sync_every: int, local_after: int = 0) -> NDArray[np.bool_]: ...
def due(step: int | NDArray[np.int64], sync_every: int, local_after: int = 0) -> bool | NDArray[np.bool_]:
    """Return whether a round follows a step, counted from 1; for an array of steps, an array.

    Every step up to `local_after`, every `sync_every` steps from there on (post-local SGD, Lin et al. 2020).
    """
    require(sync_every >= 1, f"sync_every is {sync_every}; it must be at least 1 step")
    return (step <= local_after) | ((step - local_after) % sync_every == 0)


def ends_equal(strategy: Strategy, steps: int, sync_every: int, local_after: int = 0) -> bool:
    """Return whether all replicas are equal after the last of `steps`, so that the final average changes nothing."""
    return strategy.always_exact and due(steps, sync_every, local_after)
