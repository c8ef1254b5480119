"""Run a cross-validation: check it, share its data, train the unfinished folds, and combine their results."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from tenfold.cluster.cluster import HERE, cluster_of
from tenfold.cluster.time_prediction import TimePrediction
from tenfold.common.metric_traits import LOSS, main_metric
from tenfold.crossval.crossval_result import (
    AVERAGE,
    FoldEntry,
    best_first,
    combine_results,
    fold_entry,
    measure_vote,
    save_average,
)
from tenfold.crossval.fold import (
    FoldContext,
    FoldEnd,
    FoldJob,
    FoldMode,
    FoldSplit,
    FoldWork,
    fold_experiment,
    fold_task,
    has_own_engine,
    make_fold_splits,
)
from tenfold.crossval.modes import share_cores
from tenfold.data import Splits, join_parts
from tenfold.data.streams import refuse_stream
from tenfold.engines import Outcome, choose, validate
from tenfold.engines.base import record_work
from tenfold.engines.prepare import prepare
from tenfold.engines.processes import Processes
from tenfold.errors import DataError, ExperimentError, StopTraining, StoreError, TrainingError
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.runs import Store, checkpoint
from tenfold.runs.events import (
    Emit,
    EpochEnded,
    Event,
    FoldChanged,
    FoldsStarted,
    Metric,
    Recorded,
    Started,
    Stopwatch,
    Warned,
    WorkerDropped,
)
from tenfold.training.measures import require_direction
from tenfold.workers.fork_server import start_server_for
from tenfold.workers.process import check_room, in_shared_memory, shared_parts
from tenfold.workers.task import Resolved, Task


def check_folds(experiment: Experiment) -> None:
    """Raise an ExperimentError if the experiment cannot be cross-validated."""
    if experiment.parallel.folds is None:
        raise ExperimentError("the number of folds is not set; set parallel.folds, such as folds = 10")
    if experiment.data.validation_fraction:
        raise ExperimentError(
            f"data.validation_fraction = {experiment.data.validation_fraction:g}: each fold is validated on the "
            "samples that it does not train on; set it to 0"
        )
    if not choose(experiment).trains_folds:
        raise ExperimentError(
            f'machine.engine = "{experiment.machine.engine}" does not support cross-validation; use "auto"'
        )
    for metric in experiment.training.metric_names[:1]:
        require_direction(experiment.training, metric, "the best fold")
    mode = FoldMode.of(experiment)
    if (reason := mode.unsupported) is not None:
        raise ExperimentError(reason)
    if not mode.one_by_one and has_own_engine(experiment):
        raise ExperimentError(
            f'parallel.fold_mode = "{mode.name}" does not use the engine "{choose(experiment).name}"; use fold-by-fold'
        )
    single = fold_experiment(experiment, "fold")
    validate(single.replace(engine="one-device") if mode.trains_together else single, None)


def trained_here(experiment: Experiment) -> Experiment:
    """Return the experiment for training the folds; folds of a virtual cluster are trained on this machine."""
    if not experiment.machine.is_virtual:
        return experiment
    return experiment.replace(engine="auto", cluster=None, link=None, oversubscribe=True)


def start_processes_early(experiment: Experiment) -> None:
    """Start the server that forks worker processes, if any fold needs one, so it imports torch in the background.

    Raise MachineError if worker processes cannot be started.
    """
    if processes := _count_processes(experiment):
        start_server_for(processes)


def _count_processes(experiment: Experiment) -> int:
    """Return the number of worker processes that run at the same time."""
    mode, parallel = FoldMode.of(experiment), experiment.parallel
    if mode.trains_together:
        return 0
    if not mode.one_by_one:
        nodes = parallel.workers if mode.by_node else 1
        return share_cores(experiment, (parallel.folds or 2) * parallel.fold_repeats * nodes).at_once
    by_processes = issubclass(choose(fold_experiment(experiment, "fold")), Processes)
    return parallel.workers if by_processes else 0


@contextmanager
def shared_data(resolved: Resolved) -> Iterator[Task]:
    """Load the data into shared memory, with the validation part joined to the training part.

    Raise MachineError, before anything is recorded, if memory is too small or the limit on open files too low.
    """
    task = prepare(resolved, together=FoldMode.of(resolved.experiment).trains_together or None)
    refuse_stream(task.splits.train, "the folds of a cross-validation")
    task = replace(task, splits=_with_validation_joined(task.splits))
    if task.experiment.machine.device == "cpu":
        check_room(task.splits)
        task = replace(task, splits=in_shared_memory(task.splits))
    try:
        cores.check_open_files(_count_processes(task.experiment))
        yield task
    finally:
        for part in shared_parts(task.splits):
            part.close()


def _with_validation_joined(splits: Splits) -> Splits:
    """Return the splits with the validation samples appended to the training part."""
    if splits.validation is None:
        return splits
    if splits.groups is not None:
        raise DataError(
            "data.groups cover only the training part, but cross-validation also uses the validation part; "
            "give the data without a validation part"
        )
    return replace(splits, train=join_parts(splits.train, splits.validation), validation=None)


def predict_fold_times(task: Task, predict: Callable[[Task], TimePrediction]) -> TimePrediction:
    """Predict the time of all folds of a task; `predict` predicts a single training.

    The time of one fold is multiplied by the number of folds that the busiest worker trains one after another: all of
    its folds if every fold uses all workers or every node has its own folds, otherwise its share of them.
    """
    check_folds(trained_here(task.experiment))
    mode, workers = FoldMode.of(task.experiment), task.workers
    if (reason := mode.unsupported) is not None:
        raise ExperimentError(reason)
    splits = make_fold_splits(task)
    longest = max(splits, key=lambda split: len(split.train))
    prediction = predict(fold_task(task, FoldJob(0, longest, threads=task.threads)))
    cluster = cluster_of(task.experiment)
    if not mode.one_by_one and cluster is not HERE:  # the other workers train other folds at the same time
        prediction = _slowed(prediction, cluster.slowdown(workers) / cluster.slowdown(1))
    return _repeated(prediction, mode.turns(len(splits)))


def _slowed(prediction: TimePrediction, factor: float) -> TimePrediction:
    """Return the prediction with `factor` times longer steps, because workers share the cores of their node."""
    compute = prediction.times["compute"]
    return prediction.with_computing(factor * compute, (factor - 1) * float(compute.max()))


def _repeated(prediction: TimePrediction, turns: int) -> TimePrediction:
    """Return the prediction for `turns` trainings, one after another; workers start only once."""
    low, high = prediction.interval
    start = float(prediction.times["start"].max())
    return replace(
        prediction,
        seconds=prediction.seconds * turns,
        interval=(low * turns, high * turns),
        total=(prediction.total - start) * turns + start,
        times={kind: seconds if kind == "start" else seconds * turns for kind, seconds in prediction.times.items()},
        bytes_per_worker=prediction.bytes_per_worker * turns,
    )


Status = Literal["started", "resumed", "finished", "failed"]
ORPHAN_SECONDS = 3.0
"""How long to wait for the processes of an earlier attempt, which exit when they notice that their parent is gone."""


@dataclass
class CrossValidationRun:
    """A cross-validation in progress."""

    task: Task
    fold_splits: Sequence[FoldSplit]
    store: Store
    run: int
    metadata: dict[str, Any]
    stopwatch: Stopwatch
    listen: Emit
    """Receives all events, including the folds' metrics, which are recorded only in the folds' own runs."""
    prediction: TimePrediction | None = None
    """The predicted time of all folds; None if the time is measured."""

    def __post_init__(self) -> None:
        mode = FoldMode.of(self.task.experiment)
        self.mode = mode.name
        self.train_folds: Callable[[FoldWork], None] = mode.train
        """The training function of the fold mode, or a function that trains the folds elsewhere."""
        self.entries: dict[int, FoldEntry] = {}
        """The entries of the folds that have ended, by index."""
        self.stopped_by = ""
        """The callback that requested to stop all folds, or its reason."""
        self._emit: Emit = self.listen
        self._results: dict[int, dict[str, Any]] = {}
        self._runs: dict[int, int] = {}
        self._warned: set[str] = set()
        self._began: dict[int, float] = {}

    def record(self) -> Outcome:
        """Train all unfinished folds, and record the cross-validation and every fold."""
        return record_work(self.train, self.store, self.run, self.stopwatch, self.listen, partial=self.partial_result)

    def train(self, emit: Emit) -> Outcome:
        """Train all unfinished folds, and return the combined result with the best fold's weights."""
        self._emit = emit
        # As in the store, JSON turns Python objects into names; the runs of the folds record these names.
        stored_experiment = type(self.task.experiment)(**self.task.experiment.model_dump(mode="json"))
        context = FoldContext(stored_experiment, self.store, self.run, self.metadata, self.stopwatch)
        earlier = earlier_folds(self.store, self.run)
        self._announce(
            FoldsStarted(
                at=self.stopwatch.now(),
                mode=self.mode,
                names=tuple(split.name for split in self.fold_splits),
                epochs=self.task.experiment.training.epochs,
                resumed=bool(earlier),
            )
        )
        jobs = []
        for index, split in enumerate(self.fold_splits):
            before = earlier.get(split.key)
            if before is not None and before["status"] == "finished":
                self._runs[index] = before["id"]
                self._finish(index, before["result"])
            else:
                jobs.append(FoldJob(index, split, run=before["id"] if before else None))
        if jobs and not self.stopped_by:
            work = FoldWork(self.task, context, jobs, self._relay, self._done, lambda: bool(self.stopped_by))
            self.train_folds(work)
        if not self.entries:
            raise TrainingError(f"stopped by {self.stopped_by} before any fold was trained")
        if not self._results:
            first = self._entries_in_order()[0]
            sentence, newline, lines = first["error"].partition("\n")
            raise TrainingError(
                f"all {len(self.fold_splits)} folds failed; {self.fold_splits[0].name}: {sentence} "
                f"(for details: `tenfold show {first['run'] or self.run}`){newline}{lines}"
            )
        return self._outcome()

    def partial_result(self) -> dict[str, Any]:
        """Return the combined result of the folds that have ended so far."""
        return {"mode": self.mode, "folds": self._entries_in_order()} if self.entries else {}

    def _relay(self, index: int, event: Event) -> None:
        """Pass on an event of a fold; raise StopTraining if a listener requests to stop the fold.

        The fold's own run records its metrics and epochs; the cross-validation's run records its start and end.
        """
        if isinstance(event, Metric | EpochEnded):
            try:
                self.listen(replace(event, fold=self.fold_splits[index].fold))
            except StopTraining as stop:
                if stop.all_folds:
                    self.stopped_by = self.stopped_by or str(stop)
                raise
        elif isinstance(event, Recorded):
            self._runs[index], self._began[index] = event.run, self.stopwatch.now()
        elif isinstance(event, Started):
            status: Status = "resumed" if event.resumed else "started"
            self._report(index, status, steps_per_epoch=event.steps_per_epoch)
        elif isinstance(event, Warned | WorkerDropped) and event.text not in self._warned:
            self._warned.add(event.text)  # show a warning once, even if several folds emit it
            self._warn(f"{self.fold_splits[index].name}: {event.text}")

    def _done(self, job: FoldJob, end: FoldEnd) -> None:
        if end.result is not None:
            self._finish(job.index, end.result)
            return
        run, now = self._runs.get(job.index, job.run), self.stopwatch.now()
        about = {
            "began": self._began.get(job.index, now),
            "ended": now,
            "cores": list(job.cores),
            "threads": job.threads,
        }
        self.entries[job.index] = fold_entry(job.split, run, about, error=end.error)
        if run is not None and job.index in self._began:
            record = self.store.find(run)
            if record["status"] != "failed":  # its process died before it could record this
                self.store.update(run, result=record["result"], status="failed", error=end.error)
        self._report(job.index, "failed", error=end.error.partition("\n")[0])

    def _finish(self, index: int, result: dict[str, Any]) -> None:
        self._results[index] = result
        split, seconds = self.fold_splits[index], result["seconds"]
        self.entries[index] = fold_entry(split, self._runs.get(index), result["crossval"], seconds)
        self._report(index, "finished", seconds=seconds)
        if result.get("problem"):
            self._warn(f"{split.name}: {result['problem']}")

    def _report(
        self, index: int, status: Status, *, steps_per_epoch: int = 0, seconds: float | None = None, error: str = ""
    ) -> None:
        split = self.fold_splits[index]
        self._announce(
            FoldChanged(
                at=self.stopwatch.now(),
                worker=index,
                status=status,
                fold=split.fold,
                repeat=split.repeat,
                node=split.node,
                run=self._runs.get(index),
                steps_per_epoch=steps_per_epoch,
                seconds=seconds,
                metrics=self.entries[index]["metrics"]["validation"] if index in self.entries else {},
                error=error,
            )
        )

    def _announce(self, event: Event) -> None:
        """Emit an event after which listeners may request to stop all folds."""
        try:
            self._emit(event)
        except StopTraining as stop:
            self.stopped_by = self.stopped_by or str(stop)

    def _warn(self, text: str) -> None:
        self._emit(Warned(at=self.stopwatch.now(), text=text))

    def _entries_in_order(self) -> list[FoldEntry]:
        return [self.entries[index] for index in sorted(self.entries)]

    def _outcome(self) -> Outcome:
        """Return the result of the cross-validation, and the weights of the best fold."""
        result = combine_results(self.task, self._entries_in_order(), list(self._results.values()))
        result["models"], weights = self._combine_models()
        failed = [index for index in sorted(self.entries) if self.entries[index]["status"] == "failed"]
        result["failed"] = [f"{self.fold_splits[index].name}: {self.entries[index]['error']}" for index in failed]
        if self.prediction is not None:
            result |= self.prediction.result(result["samples"])
        if self.stopped_by:
            result |= {"stopped_early": True, "stopped_by": self.stopped_by}
        return Outcome(result, weights)

    def _combine_models(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Measure the best model, the average and the vote of the finished folds; return results and best weights."""
        finished = sorted(self._results)
        measured = {index: self.entries[index]["metrics"]["validation"] for index in finished}
        metric = main_metric(measured[finished[0]]) or LOSS
        lower = self.task.experiment.training.prefers_lower(metric)
        assert lower is not None, "check_folds asks for the direction"
        best = min(finished, key=lambda index: best_first(measured[index], metric=metric, lower=lower))
        weights: dict[str, Any] = {}
        # Here "fold" is the position in the list of folds, from 1; elsewhere it counts within a repeat and node.
        combined: dict[str, Any] = {
            "best": {"fold": sorted(self.entries).index(best) + 1, "metrics": self.entries[best]["metrics"]["test"]},
            "average": {"metrics": {}},
            "vote": {"metrics": {}},
        }
        folders = {index: self.store.folder_of(self.entries[index]["run"]) for index in finished}
        samples = {folders[index]: self.entries[index]["train_samples"] for index in finished}
        try:
            weights = dict(checkpoint.load_tensors(folders[best] / "model.pt"))
            combined["average"]["metrics"] = save_average(self.task, samples, self.store.folder_of(self.run) / AVERAGE)
            combined["vote"]["metrics"] = measure_vote(self.task, samples)
        except StoreError as error:  # a model that could not be saved cannot be averaged
            self._warn(f"the models of the folds cannot be combined: {error}")
        return combined, weights


def earlier_folds(store: Store, parent: int) -> dict[tuple[int, int, int], dict[str, Any]]:
    """Wait for the processes of an earlier attempt to end, and return its fold runs by node, repeat and fold."""
    until = time.monotonic() + ORPHAN_SECONDS
    while True:
        folds = {}
        for fold in store.folds(parent):
            about = fold["metadata"]["crossval"]
            folds[about["node"], about["repeat"], about["fold"]] = fold
        if time.monotonic() > until or all(item["status"] != "running" for item in folds.values()):
            return folds
        time.sleep(0.05)
