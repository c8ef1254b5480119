"""Engines: where replicas run, and how their run is recorded."""

from tenfold.engines.base import Engine
from tenfold.engines.choose import Resolved, choose, require_no_launcher, resolve, validate
from tenfold.engines.recording import Outcome, RecordedRun

__all__ = [
    "Engine",
    "Outcome",
    "RecordedRun",
    "Resolved",
    "choose",
    "require_no_launcher",
    "resolve",
    "validate",
]
