"""Independent tasks, the folds of a cross-validation, as rows of one matrix on one device: a row for each worker."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from tenfold.data import order
from tenfold.engines.one_device import (
    Lockstep,
    Seed,
    StackedTraining,
    find_diverged,
    make_stacked,
    on_device,
    resident_numbers,
    select,
)
from tenfold.engines.recording import Outcome
from tenfold.engines.stacked_rounds import StackedRounds
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.mixing.builders import lr_scale, warmup_epochs
from tenfold.models.networks import scaling_buffers
from tenfold.runs import Emit, Event, Stopwatch
from tenfold.training.stacked_replicas import resident
from tenfold.workers.coordinator import Coordinator
from tenfold.workers.model_errors import check_metrics, check_outputs, make_divergence_error
from tenfold.workers.task import Task


def train_folds(tasks: Sequence[Task], stopwatch: Stopwatch, emits: Sequence[Emit]) -> list[Outcome | TenfoldError]:
    """Train independent tasks together on one device: same model and settings, different samples of one data set.

    The workers of a task average in rounds, and its events go to its own `emit`. A task that fails has its error in
    place of an outcome. The seconds of each are those of all, as they share the device.
    """
    with on_device(tasks[0]):
        return FoldTraining(tasks, stopwatch, emits).train()


class FoldTraining(StackedTraining):
    """Independent tasks, in each of which the workers average in rounds; one that fails does not stop the others.

    The workers of a task are neighboring rows, of which the first stands for all after their mean was taken.
    """

    def __init__(self, tasks: Sequence[Task], stopwatch: Stopwatch, emits: Sequence[Emit]) -> None:
        _check_compatible(tasks)
        experiment = tasks[0].experiment
        training, workers = experiment.training, experiment.parallel.workers
        self.by_gradients = workers > 1 and experiment.parallel.average == "gradients"
        longest = max(tasks, key=lambda task: task.steps_per_epoch)
        stacked = make_stacked(
            longest,
            len(tasks) * workers,
            scale=lr_scale(experiment),
            warmup=warmup_epochs(experiment),
            gradients_only=self.by_gradients,
        )
        if stacked.lr_schedule.wants_metric:
            raise ExperimentError(
                f"training.schedule = {training.lr_schedule_name} looks at a metric, and folds that train together on "
                'one device have one learning rate; set parallel.fold_mode = "folds-over-workers"'
            )
        self.rows = [slice(index * workers, (index + 1) * workers) for index in range(len(tasks))]
        """The replicas of each task."""
        for task, rows in zip(tasks, self.rows, strict=True):
            for row in range(rows.start, rows.stop):
                stacked.stack.write(row, scaling_buffers(task.splits.scaling))
        lengths = [len(shard) for task in tasks for shard in task.shards]
        super().__init__(
            stacked,
            Lockstep(stacked, lengths, training.samples_per_step),
            training.epochs,
            stopwatch,
            self._emit_to_all,
        )
        self.tasks = tasks
        self.emits = emits
        self.rounds = [
            StackedRounds(task.parallel, stacked, [float(len(shard)) for shard in task.shards], rows)
            for task, rows in zip(tasks, self.rows, strict=True)
        ]
        self.coordinators = [Coordinator(task, stopwatch, emit) for task, emit in zip(tasks, emits, strict=True)]
        self.outcomes: dict[int, Outcome | TenfoldError] = {}
        self.best: dict[int, dict[str, Any]] = {}
        self.losses, self.samples, self.steps_taken = [0.0] * len(tasks), [0.0] * len(tasks), [0] * len(tasks)
        self._numbers = [resident_numbers(task.splits.train) for task in tasks]

    @property
    def unfinished(self) -> list[int]:
        """The tasks that are still training, by their index."""
        return [index for index in range(len(self.tasks)) if index not in self.outcomes]

    def train(self) -> list[Outcome | TenfoldError]:
        """Train all to the end; a task that fails has its error in place of an outcome."""
        for coordinator in self.coordinators:
            coordinator.start(resumed=False)
        self.train_epochs()
        return [self.outcomes[index] for index in range(len(self.tasks))]

    def seeds(self) -> list[Seed]:
        """Return a seed for each worker, the same for the same rank of all tasks."""
        seed = self.tasks[0].experiment.training.seed
        return [(seed, self.epoch, rank) for task in self.tasks for rank in range(task.workers)]

    def orders(self) -> list[Tensor]:
        """Return the order in which each worker visits its shard."""
        self.losses, self.samples = [0.0] * len(self.tasks), [0.0] * len(self.tasks)
        seed = self.tasks[0].experiment.training.seed
        return [
            select(numbers, order(shard, seed, self.epoch, rank))
            for task, numbers in zip(self.tasks, self._numbers, strict=True)
            for rank, shard in enumerate(task.shards)
        ]

    def after_step(self, step: int) -> None:
        """Carry out the rounds that are due; a task with fewer steps per epoch than others may have ended its epoch."""
        for index in self.unfinished:
            task, rounds = self.tasks[index], self.rounds[index]
            if step > task.steps_per_epoch:
                continue
            self.steps_taken[index] = self.epoch * task.steps_per_epoch + step
            if task.workers > 1:
                if self.by_gradients:
                    rounds.step_by_gradients(self.lockstep.sizes[step - 1][self.rows[index]])
                rounds.average_weights_if_due(self.steps_taken[index])

    def check_metrics(self) -> bool:
        """Try the user's own metrics on every task, and return whether all have failed."""
        self.time.lap("compute")
        for index in self.unfinished:
            try:
                check_metrics(self.tasks[index], self.stacked.stack.network_at(self.rows[index].start))
                unclear = check_outputs(self.tasks[index], self.stacked.stack.network_at(self.rows[index].start))
                self.warn(unclear, self.emits[index])
            except TenfoldError as error:
                self.outcomes[index] = error
        self.time.lap("evaluate")
        return not self.unfinished

    def logs_after(self, step: int) -> bool:
        """Return what `log_every` says; the last step is that of the task with the most samples."""
        return step == len(self.lockstep.sizes) or self.tasks[0].logs_after(step)

    def log_losses(self, step: int, sums: Sequence[float], counts: Sequence[float]) -> None:
        """Report each first worker's loss and the replicas' distances, and end tasks in which a worker diverged."""
        for index in self.unfinished:
            rows = self.rows[index]
            rank = find_diverged(sums[rows])
            if rank is not None:
                loss, first = sums[rows][rank], self.diverged_at_once(rows.start + rank)
                self.outcomes[index] = make_divergence_error(self.tasks[index], loss, step, rank, from_the_start=first)
                continue
            self.losses[index] += sum(sums[rows])
            self.samples[index] += sum(counts[rows])
            if counts[rows.start]:
                self.emit_losses(self.emits[index], step, sums[rows.start], counts[rows.start])
            self.emit_spread(self.emits[index], step, self.rounds[index].take_distances_from_mean())

    def evaluates_after(self, step: int) -> bool:  # noqa: ARG002
        """Return False: folds that train together are evaluated after an epoch."""
        return False

    def evaluate(self) -> bool:
        """Do nothing, see `evaluates_after`."""
        return False

    def end_epoch(self) -> bool:
        """Evaluate the mean of every task's replicas, end those that stop early, and return whether all have ended."""
        for index in self.unfinished:
            message = partial(self.epoch_trained, self.losses[index], self.samples[index])
            try:
                decision, best = self.evaluate_mean(
                    self.tasks[index], self.rounds[index], self.coordinators[index], message
                )
            except TenfoldError as error:
                self.outcomes[index] = error
                continue
            if best is not None:
                self.best[index] = best
            if decision.stop:
                self._finish(index)
        return not self.unfinished

    def save(self) -> None:
        """Do nothing: folds that train together have no checkpoints."""

    def finish(self) -> None:
        """Report the model of every task that has not ended yet."""
        for index in self.unfinished:
            self._finish(index)

    def _finish(self, index: int) -> None:
        task, rows, coordinator = self.tasks[index], self.rows[index], self.coordinators[index]
        own = self.stacked.state(rows.start)
        try:
            with self.mean_of_replicas(self.rounds[index]):
                if index in self.best:
                    self.stacked.load(rows.start, self.best[index])
                share = self.evaluated_at_the_end(task, rows.start)
                message = self.finished(rows.start, self.steps_taken[index], share, self.rounds[index].bytes_moved)
                coordinator.decide([message])
            self.outcomes[index] = Outcome.of(coordinator)
        except TenfoldError as error:
            self.outcomes[index] = error
        self.stacked.load(rows.start, own)

    def _emit_to_all(self, event: Event) -> None:
        for index in self.unfinished:
            self.emits[index](event)


def _check_compatible(tasks: Sequence[Task]) -> None:
    first = tasks[0]
    if first.experiment.training.evaluate_every < 1:
        raise ExperimentError(
            "training.evaluate_every must be 1 for folds that train together on one device; "
            'or set parallel.fold_mode = "folds-over-workers"'
        )
    whole = resident(first.splits.train)
    for task in tasks:
        found = resident(task.splits.train)
        if (found and found[0]) is not (whole and whole[0]):
            raise ExperimentError("tasks that train together on one device must select their samples from one data set")
        if task.experiment.replace(name="") != first.experiment.replace(name=""):
            raise ExperimentError("tasks that train together on one device must have the same settings")
