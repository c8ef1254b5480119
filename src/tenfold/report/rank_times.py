"""Where the time of single ranks goes, epoch by epoch."""

from tenfold.errors import ExperimentError
from tenfold.report.words import duration
from tenfold.runs import Span

ALL = "all"


class RankTimes:
    """Adds up the spans of some ranks, and says at an epoch's end what they came to."""

    def __init__(self, ranks: str) -> None:
        """Take the ranks from a list such as "0,3", or "all"."""
        words = [word.strip() for word in ranks.split(",")]
        if ranks.strip() != ALL and not all(word.isdecimal() for word in words):
            raise ExperimentError(f"--log-ranks {ranks} names no ranks; write numbers such as 0,3, or all")
        self._ranks = None if ranks.strip() == ALL else {int(word) for word in words}
        self._sums: dict[int, dict[str, float]] = {}

    def add(self, span: Span) -> None:
        """Take note of a span."""
        if self._ranks is None or span.worker in self._ranks:
            sums = self._sums.setdefault(span.worker, {})
            sums[span.kind] = sums.get(span.kind, 0.0) + span.seconds

    def lines(self) -> list[str]:
        """Return a line for each rank with what was added since the last time."""
        lines = [
            f"[rank {rank}] " + "  ".join(f"{kind} {duration(seconds)}" for kind, seconds in self._sums[rank].items())
            for rank in sorted(self._sums)
        ]
        self._sums = {}
        return lines
