"""The memory in which workers of an asynchronous strategy exchange weights, each at its own pace."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torch import Tensor

from tenfold.transport import Segment
from tenfold.transport.memory.segment import MAILBOX

CENTRE_ROWS = 2


@dataclass
class ExchangeMemory:
    """One worker's view of what all workers share."""

    centre: Tensor
    """What is kept for all workers: a row of weights and a row of Adagrad's sums."""
    replicas: Tensor
    """All workers' states, one per row, for strategies that change a partner's weights."""
    versions: Any
    """How many times each replica, and last the centre, has been changed by any worker."""
    locks: Sequence[AbstractContextManager[Any]]
    """One for each replica, and the last for the centre."""
    wait_seconds: float = 0.0
    """Seconds that this worker has waited for locks."""
    communicate_seconds: float = 0.0
    """Seconds that it has held them."""

    @contextmanager
    def holding(self, *owners: int) -> Iterator[None]:
        """Hold the locks of these replicas (-1: the centre), always taken in the same order."""
        asked = perf_counter()
        with ExitStack() as stack:
            for owner in sorted(range(len(self.locks))[owner] for owner in owners):
                stack.enter_context(self.locks[owner])
            held = perf_counter()
            yield
            self.communicate_seconds += perf_counter() - held
        self.wait_seconds += held - asked


def create_centre(workers: int, numel: int) -> Segment:
    """Return new shared memory for a centre of `numel` weights, the versions of all replicas, and locks."""
    rows_for_versions = -(-(workers + 1) // MAILBOX)
    return Segment.create(max(CENTRE_ROWS, rows_for_versions), numel)
