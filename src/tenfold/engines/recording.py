"""Running an engine with everything recorded, however it ends."""

import traceback
from dataclasses import replace
from typing import Any

from tenfold.common.files import sweep
from tenfold.engines.base import Engine, Outcome
from tenfold.errors import StoreError, TenfoldError, WorkerLost
from tenfold.runs import (
    CheckpointFailed,
    Clock,
    Emit,
    Ended,
    Event,
    Lifecycle,
    Metric,
    Recorded,
    Recorder,
    Store,
    WorkerDropped,
    checkpoint,
)
from tenfold.runs.events import Ending
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task


def execute(
    engine: Engine, task: Task, store: Store, run: int, clock: Clock, listen: Emit, resumption: Resumption | None = None
) -> Outcome:
    """Train, record the events as they come and the result at the end, and save the weights.

    What cannot be recorded or saved is told once, and is in the outcome as the result's "problem".
    """
    record = store.find(run)
    path = store.path(run, record["title"])
    task = replace(task, checkpoints=path / "checkpoint")
    journal = _Journal(Recorder(store, run), listen, known=dict(record["result"]) if resumption else {})

    def end(status: Ending, error: str = "", result: dict[str, Any] | None = None) -> None:
        last = Ended(at=max(clock.now(), journal.latest), status=status, error=error.partition("\n")[0])
        journal.recorder(last)
        journal.recorder.close(result=result or journal.known, status=status, error=error)
        listen(last)

    try:
        journal(Recorded(at=clock.now(), run=run))
        outcome = engine.run(task, clock, journal, resumption)
    except WorkerLost as error:
        end("interrupted", str(error))
        raise
    except TenfoldError as error:
        end("failed", str(error))
        raise
    except KeyboardInterrupt:
        end("interrupted")
        raise
    except BaseException:
        end("failed", traceback.format_exc())
        raise
    outcome.result["total_seconds"] = clock.now()
    unsaved = ""
    try:
        checkpoint.save(outcome.weights, path / "model.pt")
        checkpoint.remove(path / "checkpoint")
    except StoreError as error:
        unsaved = str(error)
        journal.recorder.report(unsaved)
    outcome.result["problem"] = unsaved
    end("finished", result=outcome.result)
    outcome.result["problem"] = unsaved or journal.recorder.problem
    return outcome


def take_up(store: Store, record: dict[str, Any], *, abandoned: bool = False) -> tuple[Clock, Resumption | None]:
    """Open a run again where its last checkpoint is, and clear away what a writer who was killed has left.

    `abandoned` says that whoever had it is gone.
    """
    folder = store.path(record["id"], record["title"]) / "checkpoint"
    manifest = checkpoint.latest(folder)
    sweep(folder.parent)
    clock = Clock(store.reopen(record["id"], epoch=manifest["epoch"] if manifest else 0, abandoned=abandoned))
    return clock, Resumption(folder, manifest) if manifest else None


class _Journal:
    """Passes events on to the recorder and the listener, and remembers how far the run has come."""

    def __init__(self, recorder: Recorder, listen: Emit, known: dict[str, Any]) -> None:
        self.recorder = recorder
        self.listen = listen
        self.known = known
        """What is known of the result before the end."""
        self.latest = 0.0
        """The time of the last event; on a virtual cluster it runs ahead of the clock here."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, CheckpointFailed):
            self.recorder.report(event.text)
            return
        if isinstance(event, WorkerDropped):
            self.recorder.rewind(event.epoch)
        self.latest = max(self.latest, event.at)
        self.recorder(event)
        self.listen(event)
        if isinstance(event, Lifecycle):
            self.recorder.flush()
        elif isinstance(event, Metric) and event.part != "train":
            self.known |= {"part": event.part, "epochs": event.epoch + 1, "seconds": event.seconds}
            self.known.setdefault("metrics", {})[event.name] = event.value
