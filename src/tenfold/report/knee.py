"""Where the curve of a speedup bends, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from tenfold.report.differences import spoken
from tenfold.report.formatting import count, duration, several
from tenfold.report.rows import Row, baseline
from tenfold.report.selection import idle, seconds

WORTH = 1.02
"""More workers help if they make it at least 2% faster: less is within any interval."""


@dataclass(frozen=True)
class Bend:
    """What happens to a speedup as workers are added."""

    idle: Row | None
    """The first setting that spends more time on communication and waiting than on computing."""
    peak: Row | None
    """The last setting that more workers still had made faster, where there are larger ones."""

    @property
    def first(self) -> Row | None:
        """Whichever comes first."""
        found = [row for row in (self.idle, self.peak) if row is not None]
        return min(found, key=lambda row: row.workers, default=None)


def families(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the settings that differ only in the workers together, by workers, each family with its name.

    One worker mixes with nobody, so it belongs to every family whose settings it shares otherwise.
    """
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.workers):
        if row.workers > 1:
            found.setdefault(spoken(_others(row)), []).append(row)
    alone = {name: baseline(group[0], rows) for name, group in found.items()}
    return [(name, [*([one] if (one := alone[name]) else []), *group]) for name, group in found.items()]


def meeting(rows: Sequence[Row]) -> list[Row]:
    """Leave out workers who would have rounds but take fewer steps than one comes after: what they gain is no speedup.

    Where nobody meets, as with strategy none, that is what was asked for.
    """
    found = [row for row in rows if row.workers == 1 or row.bytes_per_worker]
    return found if any(row.workers > 1 for row in found) else list(rows)


def find(group: Sequence[Row]) -> Bend:
    """Return where a family, sorted by workers, bends."""
    group = meeting(group)
    waits = next((row for row in group if idle(row) > 0.5), None)
    peak = next(
        (row for at, row in enumerate(group[:-1], 1) if seconds(row) <= WORTH * min(map(seconds, group[at:]))), None
    )
    return Bend(waits, peak)


def sentence(name: str, group: Sequence[Row]) -> str:
    """Return in one sentence where a family bends and why."""
    met, bend = meeting(group), find(group)
    last = met[-1]
    subject = f"With {name}, the speedup" if name else "The speedup"
    strangers = next((row for row in group if row not in met), None)
    apart = (
        f" With {count(strangers.workers)} and more no round comes before the end; they do not count."
        if strangers
        else ""
    )
    if bend.first is None:
        return (
            f"{subject} does not bend up to {several(last.workers, 'worker')}: computing takes {1 - idle(last):.0%} "
            f"of the time there, and more workers have helped all the way.{apart}"
        )
    said = []
    if bend.idle is not None:
        talking, waiting = (bend.idle.shares.get(kind, 0.0) for kind in ("communicate", "wait"))
        why = f"communication ({talking:.0%}) and waiting ({waiting:.0%}) take more of the time than computing"
        said.append((bend.idle.workers, f"from {count(bend.idle.workers)} on, {why}"))
    if bend.peak is not None:
        fastest, largest = duration(seconds(bend.peak)), duration(seconds(last))
        times = f"{fastest} predicted with {count(bend.peak.workers)}, {largest} with {count(last.workers)}"
        said.append((bend.peak.workers, f"beyond {count(bend.peak.workers)}, more workers no longer help ({times})"))
    reasons = "; ".join(reason for _, reason in sorted(said, key=lambda one: one[0]))
    return f"{subject} bends at {several(bend.first.workers, 'worker')}: {reasons}.{apart}"


def _others(row: Row) -> dict[str, object]:
    return {name: value for name, value in row.settings.items() if name != "workers"}
