"""Events, the store that keeps them, and runs that are read from it."""

from tenfold.runs.events import (
    CheckpointFailed,
    Emit,
    Ended,
    EpochEnded,
    Event,
    FoldChanged,
    FoldsStarted,
    JobsChanged,
    JobState,
    Lifecycle,
    Metric,
    Note,
    Printed,
    Recorded,
    Span,
    Started,
    Stopwatch,
    Warned,
    WorkerDropped,
    WorkerJoined,
)
from tenfold.runs.recorder import Recorder
from tenfold.runs.run import Run
from tenfold.runs.store import Store
