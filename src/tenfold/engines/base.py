"""The base class of engines: they place the replicas, train them, and record the run, even if it fails."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self

from tenfold.common.files import remove_partial_files, short_path
from tenfold.common.imports import describe_error
from tenfold.data import Splits
from tenfold.engines.prepare import Notify, check_new_run, check_same_data, describe, prepare
from tenfold.errors import Diverged, RunTakenOver, StoreError, TenfoldError, WorkerLost
from tenfold.experiment import Experiment
from tenfold.launchers import World
from tenfold.machine.metadata import EnergyMeter, machine_load
from tenfold.runs import Recorder, Store, checkpoint, stored_predictions
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.claim import check_claim
from tenfold.runs.events import Emit, Recorded, Stopwatch, Warned
from tenfold.runs.recorder import EventDispatcher, keeping_console
from tenfold.runs.store import absolute
from tenfold.runs.stored_predictions import Predictions
from tenfold.workers.coordinator import Coordinator
from tenfold.workers.task import Resolved, Task


@dataclass(frozen=True)
class Outcome:
    """The outcome of a training: the result's numbers, and the weights of the mean of all replicas."""

    result: dict[str, Any]
    weights: dict[str, Any]
    outputs: Any = None
    """The trained network's outputs on the test part, where the engine has kept them."""
    predictions: dict[str, Predictions] = field(default_factory=dict)
    """By part, the outputs to store with the run."""

    @classmethod
    def of(cls, coordinator: Coordinator) -> "Outcome":
        """Return the outcome of a coordinator at the end of training."""
        return cls(coordinator.result, coordinator.weights, coordinator.outputs, coordinator.predictions)


Train = Callable[[Task, Stopwatch, Emit, Resumption | None], Outcome]
"""Trains a task to the end and emits everything that happens as events."""


@dataclass(frozen=True)
class RecordedRun:
    """A finished run: its store and folder, its entry in the list of runs, and its outcome."""

    store: Store
    record: dict[str, Any]
    outcome: Outcome
    experiment: Experiment
    splits: Splits | None = None
    """The data, for later use without loading them again."""

    @classmethod
    def finished(
        cls, store: Store, number: int, outcome: Outcome, experiment: Experiment, splits: Splits | None = None
    ) -> "RecordedRun":
        """Return a run that has just finished, without reading its outcome from the store again."""
        return cls(store, store.listed(number), outcome, experiment, splits)


Work = Callable[[Emit], Outcome]
"""Anything that can be recorded: it reports its events to the function it is given, and returns its outcome."""


def train_recorded(
    train: Train,
    task: Task,
    store: Store,
    run: int,
    stopwatch: Stopwatch,
    listen: Emit,
    resumption: Resumption | None = None,
    *,
    before_end: Callable[[Task, Outcome], None] | None = None,
    can_resume: bool = True,
) -> Outcome:
    """Train a task with `train`, such as an engine's `run`, and record it under a run number, with checkpoints.

    `record_work` calls `train` and saves its outcome, even after an error. `before_end` is called after training to
    add to the outcome before it is recorded. A fold cannot be resumed alone (`can_resume`).
    """
    task = replace(task, checkpoints=store.folder_of(run) / "checkpoint")
    earlier = store.find(run)["result"] if resumption else None

    def work(emit: Emit) -> Outcome:
        if resumption is not None and resumption.problem:
            emit(Warned(at=stopwatch.now(), text=resumption.problem))
        outcome = train(task, stopwatch, emit, resumption)
        if before_end is not None:
            before_end(task, outcome)
        return outcome

    return record_work(work, store, run, stopwatch, listen, known=earlier, can_resume=can_resume)


def record_work(
    work: Work,
    store: Store,
    run: int,
    stopwatch: Stopwatch,
    listen: Emit,
    *,
    partial: Callable[[], dict[str, Any]] | None = None,
    known: dict[str, Any] | None = None,
    can_resume: bool = True,
) -> Outcome:
    """Do the work and record it under a run number: events, printed output, result, and weights as model.pt.

    If the work fails or is interrupted, `partial()` is recorded as the result; by default, the metrics measured so far
    on top of `known`. A storage failure does not stop the work: it is reported once, and the result's "problem" names
    it. A run is finished, and its checkpoints are removed, only when its weights and its result are on disk; until
    then it counts as interrupted and can be resumed.
    """
    path = store.folder_of(run)
    is_first = next(_places) == 0
    load_before, energy = machine_load(), EnergyMeter()
    with keeping_console(path) as console:
        dispatcher = EventDispatcher(Recorder(store, run), stopwatch, listen, console, dict(known or {}), partial)
        outcome = _run_or_record_failure(work, dispatcher, path, can_resume=can_resume)
        outcome.result["total_seconds"] = stopwatch.now()
        outcome.result["listening_seconds"] = dispatcher.listening
        predicted = outcome.result.get("clock") == "predicted"
        if is_first and not predicted:
            outcome.result["first_in_process"] = True
        outcome.result.update(_machine_use(load_before, energy, predicted=predicted))
        _finish(outcome, dispatcher, path)
    return outcome


_places = count()
"""Numbers the works that are recorded in this process; libraries prepare themselves during the first."""


def _run_or_record_failure(work: Work, dispatcher: EventDispatcher, path: Path, *, can_resume: bool) -> Outcome:
    """Do the work; if it fails or is interrupted, record that and raise the error again."""
    try:
        dispatcher(Recorded(at=dispatcher.stopwatch.now(), run=dispatcher.recorder.run))
        outcome = work(dispatcher)
        check_claim(path)
    except RunTakenOver:
        dispatcher.recorder.abandon()
        raise
    except WorkerLost as error:
        dispatcher.known["lost_rank"] = error.rank
        dispatcher.end("interrupted", str(error))
        raise
    except TenfoldError as error:
        if isinstance(error, Diverged):
            dispatcher.known["diverged"] = True
        dispatcher.end("failed", str(error))
        raise
    except KeyboardInterrupt as error:
        dispatcher.end("interrupted")
        if can_resume:
            error.add_note(_how_to_resume(dispatcher.recorder))
        raise
    except BaseException as error:
        dispatcher.end("failed", describe_error(error))
        raise
    return outcome


def _how_to_resume(recorder: Recorder) -> str:
    number, folder = recorder.run, recorder.store.folder
    runs = "" if folder == absolute() else f', runs="{short_path(folder).as_posix()}"'
    return f"run {number} was interrupted; tenfold.resume({number}{runs}) continues from the last completed epoch"


def _machine_use(load_before: float | None, energy: EnergyMeter, *, predicted: bool) -> dict[str, Any]:
    """Return a result's entries about the machine: its load, and the energy used if times were measured."""
    use: dict[str, Any] = {}
    if (joules := energy.joules()) is not None and not predicted:
        use["energy_joules"] = joules
    load_after = machine_load()
    if load_before is not None and load_after is not None:
        use["load"] = {"before": load_before, "after": load_after, "cores": os.cpu_count()}
    return use


def _finish(outcome: Outcome, dispatcher: EventDispatcher, path: Path) -> None:
    """Save the files of a run whose work is done, record its result, and then remove its checkpoints."""
    if problem := _save_files(outcome, path, dispatcher.recorder):
        outcome.result["problem"] = problem
        dispatcher.end("interrupted", problem, outcome.result)
        return
    outcome.result["problem"] = ""
    if failed := outcome.result.get("failed"):  # folds of a cross-validation, which can be trained again
        of = f"{len(failed)} of {len(outcome.result['folds'])} folds failed"
        dispatcher.end("interrupted", f"{of}: {failed[0]}", outcome.result)
        return
    if dispatcher.end("finished", result=outcome.result):
        checkpoint.remove(path / "checkpoint")
    outcome.result["problem"] = dispatcher.recorder.problem


def _save_files(outcome: Outcome, folder: Path, recorder: Recorder) -> str:
    """Save the weights and the predictions of a run; return the reason if the weights could not be saved, or ""."""
    try:
        if outcome.weights:  # a simulated script saves its own weights
            checkpoint.save_tensors(outcome.weights, folder / "model.pt")
    except StoreError as error:
        recorder.report(str(error))
        return str(error)
    try:
        stored_predictions.save(outcome.predictions, folder / stored_predictions.FILE)
    except StoreError as error:  # a run is complete without its predictions
        recorder.report(str(error))
    return ""


def open_for_resume(
    store: Store, record: dict[str, Any], *, force: bool = False
) -> tuple[Stopwatch, Resumption | None]:
    """Claim a run to resume it, and return its stopwatch and its last checkpoint, if it has one.

    Temporary files that a killed process left are removed. `force` claims the run even if another process seems to
    work on it.
    """
    run, folder = record["id"], store.path(record["id"], record["title"]) / "checkpoint"
    if not record["experiment"] or not record["metadata"]:
        raise StoreError(f"run {run} cannot be resumed: {'; '.join(record['problems'])}")
    store.claim(run, force=force)
    try:
        manifest, problem = checkpoint.find_undamaged(folder)
        remove_partial_files(folder.parent)
        stopwatch = Stopwatch(store.restart(run, epoch=manifest["epoch"] if manifest else 0))
    except BaseException:
        store.release(run)
        raise
    return stopwatch, Resumption(folder, manifest, problem) if manifest else None


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
        """Return a sentence that explains why this engine cannot train the experiment; None if it can.

        `world` describes the launcher's ranks, if there are any.
        """
        return None

    @classmethod
    def is_usual(cls, _experiment: Experiment, _world: World | None) -> bool:
        """Return whether `machine.engine = "auto"` selects this engine.

        Engines of installed packages that define this method come before the built-in ones.
        """
        return False

    @classmethod
    def create(cls, _resolved: Resolved, _notify: Notify) -> Self:
        """Return the engine for an experiment that it supports."""
        return cls()

    @abstractmethod
    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end, and emit events."""

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
