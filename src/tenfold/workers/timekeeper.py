"""Where a worker's time goes."""

from time import perf_counter

from tenfold.runs import Emit, Span, Stopwatch
from tenfold.runs.events import SpanKind

SINGLE_SPANS = 600
TRAINING: tuple[SpanKind, ...] = ("data", "copy", "compute", "wait", "communicate")


class Timekeeper:
    """Assigns every moment of a worker to one kind of span.

    The first spans are emitted one by one, for the timeline; later ones are added up until the next `emit_sums`.
    """

    def __init__(self, stopwatch: Stopwatch, emit: Emit, worker: int) -> None:
        self.stopwatch = stopwatch
        self.emit = emit
        self.worker = worker
        self.seconds = 0.0
        """Training time so far."""
        self.epoch = 0
        self.times: dict[str, float] = {}
        self._single = SINGLE_SPANS
        self._since = perf_counter()
        self._window = self._since
        self._sums: dict[SpanKind, tuple[float, int]] = {}
        self._computed = 0.0
        """Seconds of computing when copies were last counted."""

    def begin(self) -> None:
        """Count everything before the first step as startup; a resumed run has started before."""
        if not self.times:
            self._since = self.stopwatch.origin
            self.lap("start")

    def skip(self) -> None:
        """Start a new lap, and count the time since the last one as nothing."""
        self._since = perf_counter()

    def lap(self, kind: SpanKind, *, communicated: float = 0.0, waited: float = 0.0) -> None:
        """Count the time since the last lap as this kind, except for what was spent on communicating and waiting."""
        now = perf_counter()
        own = now - self._since - communicated - waited
        self._add(kind, self._since, own)
        if waited:
            self._add("wait", self._since + own, waited)
        if communicated:
            self._add("communicate", now - communicated, communicated)
        self._since = now

    def count_copies(self, seconds: float) -> None:
        """Count the time that a GPU spent on copies as copying, not computing, since the last call.

        The worker waits for both together. What copies overlap with other work adds no time, so there may be less.
        """
        if not seconds:
            return
        moved = min(seconds, self.times.get("compute", 0.0) - self._computed)
        self.times["compute"] = self._computed = self.times.get("compute", 0.0) - moved
        self.times["copy"] = self.times.get("copy", 0.0) + moved
        if "compute" in self._sums:  # the first spans were emitted one by one
            computed, count = self._sums["compute"]
            of_sums = min(moved, computed)
            self._sums |= {"compute": (computed - of_sums, count), "copy": (of_sums, count)}

    def emit_sums(self) -> None:
        """Emit what has been added up since the last time."""
        for kind, (seconds, count) in self._sums.items():
            at = self._window - self.stopwatch.origin
            self._emit(at, kind, seconds, count)
        self._sums.clear()
        self._window = self._since

    def _add(self, kind: SpanKind, start: float, seconds: float) -> None:
        self.times[kind] = self.times.get(kind, 0.0) + seconds
        if kind in TRAINING:
            self.seconds += seconds
        if self._single > 0:
            self._single -= 1
            self._emit(start - self.stopwatch.origin, kind, seconds)
            self._window = start + seconds
        else:
            total, count = self._sums.get(kind, (0.0, 0))
            self._sums[kind] = (total + seconds, count + 1)

    def _emit(self, at: float, kind: SpanKind, seconds: float, count: int = 1) -> None:
        self.emit(Span(at=at, kind=kind, seconds=seconds, count=count, epoch=self.epoch, worker=self.worker))
