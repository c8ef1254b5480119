"""What every engine does: place the replicas, train them to the end, and record the run."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from tenfold.data import FetchProgress
from tenfold.engines.choose import Notify
from tenfold.engines.prepare import check_new_run, check_same_data, describe, prepare
from tenfold.engines.recording import Outcome, RecordedRun, open_for_resume, train_recorded
from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.runs import Emit, Stopwatch, Store
from tenfold.runs.checkpoint import Resumption
from tenfold.workers.task import Task, make_network


class Engine(ABC):
    """Trains the replicas of a task: in this process, in several, on several hosts, or for a virtual cluster.

    An engine of your own implements `run`; `tenfold.train(engine=MyEngine)` or an entry point uses it.
    """

    name: ClassVar[str] = "engine"

    @classmethod
    def supports(cls, _experiment: Experiment, _world: World | None) -> str | None:
        """Return why this engine cannot train the experiment here, in a sentence; None if it can.

        `world` is what a launcher started, if one did.
        """
        return None

    @classmethod
    def is_usual(cls, _experiment: Experiment, _world: World | None) -> bool:
        """Return whether `machine.engine = "auto"` means this engine."""
        return False

    @classmethod
    def create(cls, _experiment: Experiment, _world: World | None, _notify: Notify) -> Self:
        """Return the engine for an experiment that it supports."""
        return cls()

    @abstractmethod
    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end, and emit everything that happens as events."""

    def prepare(self, experiment: Experiment, fetching: FetchProgress | None = None) -> Task:
        """Load the data and decide where the workers run, before anything is recorded; all defaults are filled in."""
        return prepare(experiment, fetching)

    def train(
        self,
        experiment: Experiment,
        *,
        runs: str | Path | None,
        kind: str,
        stopwatch: Stopwatch,
        listen: Emit,
        fetching: FetchProgress | None = None,
    ) -> RecordedRun:
        """Train an experiment and record it as a new run."""
        task = self.prepare(experiment, fetching)
        check_new_run(task)
        store = Store(runs)
        number = store.create(task.experiment, kind=kind, facts=describe(task))
        outcome = train_recorded(self.run, task, store, number, stopwatch, listen)
        return RecordedRun.finished(store, number, outcome, task.experiment)

    def resume(
        self, experiment: Experiment, store: Store, record: dict[str, Any], listen: Emit, *, force: bool = False
    ) -> RecordedRun:
        """Continue a run from its last checkpoint; `force` even if another process seems to work on it.

        `record` is the run as `Store.find` returns it.
        """
        task = self.prepare(experiment)
        check_same_data(record, task)
        make_network(task)  # a model that cannot be built must leave the run as it is
        stopwatch, resumption = open_for_resume(store, record, force=force)
        outcome = train_recorded(self.run, task, store, record["id"], stopwatch, listen, resumption)
        return RecordedRun.finished(store, record["id"], outcome, task.experiment)
