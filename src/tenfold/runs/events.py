"""Everything that happens in a run, as typed values. Who trains emits them; stores and displays read them."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

SpanKind = Literal["data", "compute", "wait", "communicate", "evaluate", "save", "start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """The run entered another stage: recorded, started, resumed, epoch, note, warning, lost, finished, failed, ..."""

    at: float
    what: str
    detail: str = ""
    epoch: int = 0
    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number was measured: a loss, an accuracy, a learning rate."""

    at: float
    name: str
    value: float
    part: Literal["train", "validation", "test"]
    step: int
    epoch: int
    seconds: float
    """Training time until here: without start-up, evaluation and saving."""
    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A worker spent time on something, `count` times in a row; `at` is when it began."""

    at: float
    kind: SpanKind
    seconds: float
    count: int = 1
    epoch: int = 0
    worker: int = 0


Event = Lifecycle | Metric | Span
Emit = Callable[[Event], None]
TYPES: dict[str, type[Lifecycle] | type[Metric] | type[Span]] = {
    "lifecycle": Lifecycle,
    "metric": Metric,
    "span": Span,
}


def as_row(event: Event) -> dict[str, Any]:
    """Return the event as a flat dictionary that names its type."""
    return {"type": type(event).__name__.lower(), **asdict(event)}


class Clock:
    """Seconds since the run began; a resumed run's clock goes on from where it stood."""

    def __init__(self, elapsed: float = 0.0) -> None:
        self.origin = time.perf_counter() - elapsed

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.perf_counter() - self.origin
