"""The transport of a single worker."""

from collections.abc import Sequence

import torch

from tenfold.mixing import Round
from tenfold.transport.base import Transport, check_size


class SingleWorkerTransport(Transport):
    """A single worker: there are no others to average with, to wait for or to notify."""

    def __init__(self, numel: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        super().__init__(rank=0, size=1)
        self.buffer = torch.zeros(numel, dtype=dtype, device=device)

    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:  # noqa: ARG002
        """Keep the weights: they are their own mean."""
        check_size(round_, self.size)

    def barrier(self, timeout: float | None = None) -> None:
        """Return at once."""

    def broadcast(self, root: int = 0) -> None:
        """Keep the weights: they are the root's."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return the one worker's values."""
        return [[float(value) for value in values]]

    def abort(self) -> None:
        """Do nothing: no other worker waits."""

    def close(self) -> None:
        """Do nothing: the buffer is the worker's own."""
