"""How long copies of batches to a GPU take, read from events in its stream: training does not wait to time them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

MOST_PENDING = 2048
"""With more unread copies than this, the older half is read; the device has finished those by then."""


class CopyTimer:
    """Adds up the seconds that a device spends on copies; on a CPU, where nothing is copied, it does nothing.

    `mark` records an event in the stream of the device and returns it; by default that of a GPU.
    """

    def __init__(self, device: torch.device, mark: Callable[[], Any] | None = None) -> None:
        self._device = device
        self._mark = mark or (self._cuda_event if device.type == "cuda" else None)
        self._pending: list[tuple[Any, Any]] = []
        self._seconds = 0.0

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time the copies that are started inside."""
        if self._mark is None:
            yield
            return
        begin = self._mark()
        yield
        self._pending.append((begin, self._mark()))
        if len(self._pending) > MOST_PENDING:
            self._read(MOST_PENDING // 2)

    def take(self) -> float:
        """Return the seconds of copies since the last call; it waits for the last copy."""
        self._read(len(self._pending))
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _read(self, count: int) -> None:
        read, self._pending = self._pending[:count], self._pending[count:]
        if read:
            read[-1][1].synchronize()
        self._seconds += sum(begin.elapsed_time(end) for begin, end in read) / 1e3

    def __reduce__(self) -> tuple[Any, ...]:
        return CopyTimer, (self._device,)

    def _cuda_event(self) -> torch.cuda.Event:
        """Record an event in the stream of this GPU, whichever GPU is the current one of this process."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event
