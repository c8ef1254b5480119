"""Engines: where replicas run, and how their run is recorded."""

from tenfold.engines.base import Engine
from tenfold.engines.choose import choose, make_engine, require_no_launcher, resolve, validate
from tenfold.engines.recording import Outcome, RecordedRun
from tenfold.workers.task import Resolved

__all__ = [
    "Engine",
    "Outcome",
    "RecordedRun",
    "Resolved",
    "choose",
    "make_engine",
    "require_no_launcher",
    "resolve",
    "validate",
]
