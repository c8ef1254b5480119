"""How long copies of batches to a GPU take, read from events in its stream: training does not wait to time them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

MOST_PENDING = 2048
"""With more unread copies than this, the older half is read; the device has finished those by then."""


class StreamEvent(Protocol):
    """An event in the stream of a device."""

    def record(self) -> None:
        """Take place after the work that the device has been given so far."""

    def synchronize(self) -> None:
        """Wait until it has taken place."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds until another event."""
        ...


MakeEvent = Callable[[], StreamEvent]


class CopyTimer:
    """Adds up the seconds that a device spends on copies; on a CPU, where nothing is copied, it does nothing."""

    def __init__(self, device: torch.device, make_event: MakeEvent | None = None) -> None:
        self._device = device
        self._make_event = make_event or (self._cuda_event if device.type == "cuda" else None)
        self._pending: list[tuple[StreamEvent, StreamEvent]] = []
        self._seconds = 0.0

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time the copies that are started inside."""
        if self._make_event is None:
            yield
            return
        begin, end = self._make_event(), self._make_event()
        begin.record()
        yield
        end.record()
        self._pending.append((begin, end))
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

    def _cuda_event(self) -> StreamEvent:
        return CudaEvent(self._device)


class CudaEvent:
    """An event in the stream of one GPU, whichever GPU is the current one of this process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def record(self) -> None:
        """Take place after the copies that were given to the stream so far."""
        self._event.record(torch.cuda.current_stream(self._device))

    def synchronize(self) -> None:
        """Wait until it has taken place."""
        self._event.synchronize()

    def elapsed_time(self, end: "CudaEvent") -> float:
        """Return the milliseconds until another event of the same GPU."""
        return self._event.elapsed_time(end._event)  # type: ignore[no-any-return]
