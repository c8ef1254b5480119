"""The events of a run, as typed values and as rows: engines emit them, stores and displays read them.

There are three families: a `Metric` is a measured number, a `Span` is time that a worker spent, and the subclasses of
`Lifecycle` are the stages of a run, with their metadata.

`worker` is the number of the worker. In a cross-validation, listeners receive the events of one worker per fold, and
`worker` contains the index of the fold instead; read it as `fold_index`.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

SpanKind = Literal["data", "copy", "compute", "wait", "communicate", "evaluate", "save", "start"]
Ending = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """A run entered a new stage; each kind of stage is a subclass."""

    KIND: ClassVar[str]

    at: float
    epoch: int = 0
    worker: int = 0

    @property
    def stage(self) -> str:
        """The stage in one word: recorded, started, resumed, epoch, warning, finished, ..."""
        return self.KIND

    @property
    def fold_index(self) -> int:
        """In a cross-validation, the index of the fold among all folds, from 0."""
        return self.worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(Lifecycle):
    """The run has a number in the store."""

    KIND = "recorded"
    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Lifecycle):
    """Training begins, or continues where it was interrupted."""

    KIND = "started"
    steps_per_epoch: int
    batch_size: int
    workers: int
    train_samples: int
    resumed: bool = False

    @property
    def stage(self) -> str:
        return "resumed" if self.resumed else "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldsStarted(Lifecycle):
    """A cross-validation begins, or continues with the folds that are not finished."""

    KIND = "folds"
    mode: str
    names: tuple[str, ...]
    epochs: int
    resumed: bool = False

    @property
    def stage(self) -> str:
        return "resumed" if self.resumed else "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldChanged(Lifecycle):
    """A fold of a cross-validation began or ended."""

    KIND = "fold"
    status: Literal["started", "resumed", "finished", "failed"]
    fold: int
    repeat: int
    node: int
    run: int | None = None
    steps_per_epoch: int = 0
    seconds: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The metrics on the fold's validation part at its end."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded(Lifecycle):
    """All workers have completed the epoch."""

    KIND = "epoch"
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The metrics after the epoch, by part and name: train_loss, validation_accuracy, ..."""
    fold: int = 0
    """In a cross-validation, the number of the fold, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Lifecycle):
    """A message to the user that is not a warning."""

    KIND = "note"
    text: str


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of an executor's job, as known to the submitting process."""

    label: str
    state: str
    """waiting, running or done."""
    node: str = ""
    """The machine that it runs on; "" if the submitting process does not know it."""
    done: float = 0.0
    """The fraction of its steps that are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsChanged(Lifecycle):
    """The states of all jobs of an executor; this event is shown, but not recorded."""

    KIND = "jobs"
    jobs: tuple[JobState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Lifecycle):
    """A warning; training continues."""

    KIND = "warning"
    text: str
    concerns_worker: bool = False
    """Whether it concerns `worker` alone, not the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed(Lifecycle):
    """Output of a worker process; it is stored in the run's console file, not among its events."""

    KIND = "printed"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(Lifecycle):
    """The epoch's checkpoint could not be written."""

    KIND = "unsaved"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDropped(Lifecycle):
    """A worker was lost; the others continue without it, with `epoch` epochs completed.

    If another worker will replace it, they continue after the current step, otherwise from the end of that epoch.
    """

    KIND = "lost"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(Lifecycle):
    """Another worker has taken the place of a lost one."""

    KIND = "joined"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Lifecycle):
    """The run is over."""

    KIND = "ended"
    status: Ending
    error: str = ""
    """The first line of the error message."""

    @property
    def stage(self) -> str:
        return self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number was measured: a loss, an accuracy, a learning rate."""

    at: float
    name: str
    value: float
    part: Literal["train", "validation", "test"]
    step: int
    epoch: int
    seconds: float
    """Training time so far, excluding startup, evaluation and saving."""
    worker: int = 0
    fold: int = 0
    """In a cross-validation, the number of the fold, from 1."""

    @property
    def fold_index(self) -> int:
        return self.worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A worker spent time on something, `count` times in a row; `at` is when it began."""

    at: float
    kind: SpanKind
    seconds: float
    count: int = 1
    epoch: int = 0
    worker: int = 0


Event = Lifecycle | Metric | Span
Emit = Callable[[Event], None]


def ignore(_: object) -> None:
    """Ignore an event."""


class Stopwatch:
    """Measures the seconds since a run began; in a resumed run it continues from its last value."""

    def __init__(self, elapsed: float = 0.0) -> None:
        self.origin = time.perf_counter() - elapsed

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.perf_counter() - self.origin


STAGES: dict[str, type[Lifecycle]] = {
    item.KIND: item
    for item in tuple(globals().values())
    if isinstance(item, type) and issubclass(item, Lifecycle) and item is not Lifecycle
}


def family(event: Event) -> str:
    """Return "lifecycle", "metric" or "span"."""
    return "lifecycle" if isinstance(event, Lifecycle) else type(event).__name__.lower()


def as_row(event: Event) -> dict[str, Any]:
    """Return the event as a dictionary of plain values that names its type."""
    if isinstance(event, Lifecycle):
        return {"type": family(event), "what": event.KIND, **asdict(event)}
    return {"type": family(event), **{name: getattr(event, name) for name in event.__slots__}}  # many: asdict is slow


def metadata_of(event: Event) -> dict[str, Any]:
    """Return the metadata of an event, without its time, epoch and worker."""
    return {name: value for name, value in asdict(event).items() if name not in ("at", "epoch", "worker")}


def from_row(row: dict[str, Any]) -> Event:
    """Return the event of a row; ValueError if it is damaged or from an incompatible version.

    Fields that this version does not know are ignored.
    """
    try:
        event_class = {"metric": Metric, "span": Span}.get(row["type"]) or STAGES[row["what"]]
        return _adapter(event_class).validate_python(row)
    except (KeyError, TypeError, ValidationError):
        raise ValueError(f"this version of Tenfold cannot read the event {json.dumps(row)[:200]}") from None


@cache
def _adapter(kind: type[Event]) -> TypeAdapter[Event]:
    return TypeAdapter(kind)
