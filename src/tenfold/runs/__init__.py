"""Events, the store that keeps them, and what is read back from it."""

from tenfold.runs.events import Clock, Emit, Event, Lifecycle, Metric, Span
from tenfold.runs.recorder import Recorder
from tenfold.runs.run import Run
from tenfold.runs.store import Store

__all__ = ["Clock", "Emit", "Event", "Lifecycle", "Metric", "Recorder", "Run", "Span", "Store"]
