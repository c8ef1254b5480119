"""What every engine does: place the replicas, train them to the end, and record the run."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from tenfold.engines.choose import Notify
from tenfold.engines.prepare import check_new_run, check_same_data, describe, prepare
from tenfold.engines.recording import Outcome, RecordedRun, open_for_resume, train_recorded
from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.runs import Emit, Stopwatch, Store
from tenfold.runs.checkpoint import Resumption
from tenfold.workers.task import Resolved, Task


class Engine(ABC):
    """Trains the replicas of a task: in this process, in several, on several hosts, or for a virtual cluster.

    An engine of your own implements `run`; `tenfold.train(engine=MyEngine)` or an entry point uses it.
    """

    name: ClassVar[str] = "engine"
    steps_together: ClassVar[bool] = False
    """Whether all replicas step together on one device, with all of its cores."""
    divides_models: ClassVar[bool] = False
    """Whether several workers can hold one replica."""
    trains_folds: ClassVar[bool] = True
    """Whether the folds of a cross-validation can use it: they are trained by `run`, without `prepare`."""
    needs_launcher: ClassVar[bool] = False
    """Whether its workers are a launcher's ranks, even if there is only one."""
    predictable: ClassVar[bool] = False
    """Whether `cluster = "here"` predicts its times, so that each run is compared with a prediction."""

    @classmethod
    def supports(cls, _experiment: Experiment, _world: World | None) -> str | None:
        """Return why this engine cannot train the experiment here, in a sentence; None if it can.

        `world` is what a launcher started, if one did.
        """
        return None

    @classmethod
    def is_usual(cls, _experiment: Experiment, _world: World | None) -> bool:
        """Return whether `machine.engine = "auto"` means this engine.

        The engines of installed packages that define this method are asked before the built-in ones.
        """
        return False

    @classmethod
    def create(cls, _resolved: Resolved, _notify: Notify) -> Self:
        """Return the engine for an experiment that it supports."""
        return cls()

    @abstractmethod
    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end, and emit everything that happens as events."""

    def prepare(self, resolved: Resolved) -> Task:
        """Load the data and decide where the workers run, before anything is recorded."""
        return prepare(resolved, together=self.steps_together)

    def train(
        self,
        resolved: Resolved,
        *,
        runs: str | Path | None,
        kind: str,
        stopwatch: Stopwatch,
        listen: Emit,
    ) -> RecordedRun:
        """Train an experiment and record it as a new run."""
        task = self.prepare(resolved)
        check_new_run(task)
        store = Store(runs)
        number = store.create(task.experiment, kind=kind, metadata=describe(task))
        outcome = train_recorded(self.run, task, store, number, stopwatch, listen)
        return RecordedRun.finished(store, number, outcome, task.experiment, task.splits)

    def resume(
        self, resolved: Resolved, store: Store, record: dict[str, Any], listen: Emit, *, force: bool = False
    ) -> RecordedRun:
        """Continue a run from its last checkpoint; `force` even if another process seems to work on it.

        `record` is the run as `Store.find` returns it.
        """
        task = self.prepare(resolved)
        check_same_data(record, task)
        stopwatch, resumption = open_for_resume(store, record, force=force)
        outcome = train_recorded(self.run, task, store, record["id"], stopwatch, listen, resumption)
        return RecordedRun.finished(store, record["id"], outcome, task.experiment)
