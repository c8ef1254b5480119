"""Engines: where replicas run, and how their run is recorded.

To add one, write a subclass of `Engine` in a file here, and add its name to `registry.py`.
"""

from tenfold.engines.base import Engine, Outcome, RecordedRun
from tenfold.engines.prepare import choose, make_engine, require_no_launcher, resolve, validate
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
