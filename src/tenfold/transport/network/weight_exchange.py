"""Averaging over a network: what one rank sends and receives, and in which order it adds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tenfold.transport.base import average_in_rank_order
from tenfold.transport.network.abstract_network import Network, Transfers


class WeightExchange:
    """Averages one rank's weights with those of others; `bytes_moved` counts what was sent and received."""

    def __init__(self, network: Network, weights: Tensor) -> None:
        self.network = network
        self.weights = weights
        self.bytes_moved = 0
        self._scratch = weights.new_empty(0)

    def all_reduce(self, share: float | None) -> None:
        """Take the mean over all ranks by the library's own sum of w_i x_i, or sum of x_i over n for equal shares."""
        if share is not None:
            self.weights.mul_(share)
        self.network.all_reduce(self.weights)
        if share is None:
            self.weights.mul_(1 / self.network.size)
        self.bytes_moved += 4 * self.weights.nbytes * (self.network.size - 1) // self.network.size

    def average_sources(self, sources: Sequence[int], readers: Sequence[int], shares: Sequence[float] | None) -> None:
        """Average the sources' weights, in rank order, into these; `readers` are the other ranks that read these."""
        others = [source for source in sources if source != self.network.rank]
        rows = self._rows(len(others) + 2, self.weights.numel())
        arrived = dict(zip(others, rows, strict=False))
        self.send_and_receive([(reader, self.weights) for reader in readers], list(arrived.items()))
        if others:
            members = [arrived.get(source, self.weights) for source in sources]
            average_in_rank_order(members, shares, self.weights, rows[-2:])

    def average_group(self, group: Sequence[int], shares: Sequence[float] | None) -> None:
        """Average within a group, dividing the work: member k averages slice k, in rank order, and sends it back.

        Each sends and receives 2 n (m-1)/m bytes instead of (m-1) n.
        """
        slices = dict(zip(group, self.weights.tensor_split(len(group)), strict=True))
        mine = slices.pop(self.network.rank)
        rows = self._rows(len(group) + 1, mine.numel())
        arrived = dict(zip(slices, rows, strict=False))
        self.send_and_receive(list(slices.items()), list(arrived.items()))
        average_in_rank_order([arrived.get(member, mine) for member in group], shares, mine, rows[-2:])
        self.send_and_receive([(member, mine) for member in slices], list(slices.items()))

    def send_and_receive(self, sends: Transfers, receives: Transfers) -> None:
        """Exchange tensors, leaving out the empty ones."""
        sends = [(rank, tensor) for rank, tensor in sends if tensor.numel()]
        receives = [(rank, tensor) for rank, tensor in receives if tensor.numel()]
        self.network.exchange(sends, receives)
        self.bytes_moved += sum(tensor.nbytes for _, tensor in (*sends, *receives))

    def _rows(self, count: int, length: int) -> Tensor:
        """Return working memory, kept from one round to the next."""
        if self._scratch.numel() < count * length:
            self._scratch = torch.empty(count * length, dtype=self.weights.dtype, device=self.weights.device)
        return self._scratch[: count * length].view(count, length)
