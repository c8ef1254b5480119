"""From names to loggers."""

from collections.abc import Sequence
from pathlib import Path

from tenfold.common import catalog
from tenfold.common.registry import suggest
from tenfold.errors import ExperimentError
from tenfold.launch.detect import detect_world
from tenfold.report.loggers.run_logger import RunLogger
from tenfold.runs.store import absolute


def make_loggers(log: str | Sequence[str] | None, runs: str | Path | None) -> list[RunLogger]:
    """Return the loggers with these names, for runs in a folder; none on ranks that do not record."""
    names = [log] if isinstance(log, str) else list(log or ())
    for name in names:
        if name not in catalog.LOGGERS:
            raise ExperimentError(f"unknown logger {name!r}; {suggest(str(name), catalog.LOGGERS)}")
    world = detect_world() if names else None
    if world is not None and world.rank:
        return []
    return [catalog.LOGGERS[name](absolute(runs)) for name in dict.fromkeys(names)]
