"""How single ranks spend their time, epoch by epoch."""

from tenfold.report.formatting import duration
from tenfold.runs import Span


class RankTimes:
    """Adds up the spans of some ranks in each epoch."""

    def __init__(self, ranks: set[int] | None = None) -> None:
        """Watch these ranks; by default, all."""
        self._ranks = ranks
        self._sums: dict[int, dict[str, float]] = {}

    def add(self, span: Span) -> None:
        """Add a span."""
        if self._ranks is None or span.worker in self._ranks:
            sums = self._sums.setdefault(span.worker, {})
            sums[span.kind] = sums.get(span.kind, 0.0) + span.seconds

    def lines(self) -> list[str]:
        """Return a line for each rank with the times since the last call."""
        lines = [
            f"[rank {rank}] " + "  ".join(f"{kind} {duration(seconds)}" for kind, seconds in self._sums[rank].items())
            for rank in sorted(self._sums)
        ]
        self._sums = {}
        return lines
