"""Independent tasks as rows of one matrix on one device: the folds of a cross-validation."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tenfold.data import order
from tenfold.engines.fused.fused_training import FusedTraining, Seed, make_fused, resident_numbers, select
from tenfold.engines.fused.lockstep import Lockstep, first_diverged
from tenfold.engines.recording import Outcome
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.models.input_scaling import scaling_buffers
from tenfold.runs import Clock, Emit, Event
from tenfold.training.fused.replicas import resident
from tenfold.workers.supervisor import Supervisor
from tenfold.workers.task import Task, diverged


class FoldTraining(FusedTraining):
    """Independent tasks of one worker each; one that fails does not stop the others."""

    def __init__(self, tasks: Sequence[Task], clock: Clock, emits: Sequence[Emit]) -> None:
        _check_compatible(tasks)
        training = tasks[0].experiment.training
        longest = max(tasks, key=lambda task: task.steps_per_epoch)
        fused = make_fused(longest, len(tasks), warmup=training.warmup)
        for row, task in enumerate(tasks):
            fused.stack.write(row, scaling_buffers(task.splits.scaling))
        lockstep = Lockstep(fused, [len(task.splits.train) for task in tasks], training.samples_per_step)
        super().__init__(fused, lockstep, training.epochs, clock, self._emit_to_all)
        self.tasks = tasks
        self.emits = emits
        self.supervisors = [Supervisor(task, clock, emit) for task, emit in zip(tasks, emits, strict=True)]
        self.outcomes: dict[int, Outcome | TenfoldError] = {}
        self.best: dict[int, dict[str, Any]] = {}
        self.losses, self.samples = [0.0] * len(tasks), [0.0] * len(tasks)
        self._numbers = [resident_numbers(task.splits.train) for task in tasks]

    @property
    def unfinished(self) -> list[int]:
        """The rows that are still training."""
        return [row for row in range(len(self.tasks)) if row not in self.outcomes]

    def train(self) -> list[Outcome | TenfoldError]:
        """Train all to the end; a task that fails has its error in place of an outcome."""
        for supervisor in self.supervisors:
            supervisor.start(resumed=False)
        self.train_epochs(self.emits)
        for row in self.unfinished:
            self._finish(row)
        return [self.outcomes[row] for row in range(len(self.tasks))]

    def seeds(self) -> list[Seed]:
        """Return the same seed for all rows: each is the only worker of its task."""
        return [(self.tasks[0].experiment.training.seed, self.epoch, 0)] * len(self.tasks)

    def orders(self) -> list[Tensor]:
        """Return the order in which each task visits its samples."""
        self.losses, self.samples = [0.0] * len(self.tasks), [0.0] * len(self.tasks)
        seed = self.tasks[0].experiment.training.seed
        orders = [order(task.shards[0], seed, self.epoch, 0) for task in self.tasks]
        return [select(numbers, one) for numbers, one in zip(self._numbers, orders, strict=True)]

    def logs_after(self, step: int) -> bool:
        """Return what `log_every` says; the last step is that of the task with the most samples."""
        return step == len(self.lockstep.sizes) or self.tasks[0].logs_after(step)

    def log(self, step: int, sums: Sequence[float], counts: Sequence[float]) -> None:
        """Report the loss of each task, and end those that diverged."""
        for row in self.unfinished:
            if first_diverged([sums[row]]) is not None:
                self.outcomes[row] = diverged(self.tasks[row], sums[row], step, 0)
                continue
            self.losses[row] += sums[row]
            self.samples[row] += counts[row]
            if counts[row]:
                self.emit_losses(self.emits[row], step, sums[row], counts[row])

    def end_epoch(self) -> bool:
        """Evaluate every task, end those that stop early, and return whether all have ended."""
        for row in self.unfinished:
            task = self.tasks[row]
            try:
                outputs = self.predict(task, row, task.watched)
                message = self.reviewed(self.losses[row], self.samples[row], outputs)
                decision = self.supervisors[row].hear([message])
            except TenfoldError as error:
                self.outcomes[row] = error
                continue
            if decision.best and task.experiment.training.patience is not None:
                self.best[row] = self.fused.state(row)
            if decision.stop:
                self._finish(row)
        return not self.unfinished

    def _finish(self, row: int) -> None:
        own = self.fused.state(row)
        if row in self.best:
            self.fused.load(row, self.best[row])
        try:
            outputs = self.predict(self.tasks[row], row, self.tasks[row].splits.test)
            supervisor = self.supervisors[row]
            supervisor.hear([self.finished(row, int(self.fused.optimizer.taken[row]), outputs)])
            self.outcomes[row] = Outcome(
                supervisor.result, supervisor.weights, supervisor.outputs, supervisor.predictions
            )
        except TenfoldError as error:
            self.outcomes[row] = error
        self.fused.load(row, own)

    def _emit_to_all(self, event: Event) -> None:
        for row in self.unfinished:
            self.emits[row](event)


def _check_compatible(tasks: Sequence[Task]) -> None:
    first = tasks[0]
    if first.experiment.training.evaluate_every < 1:
        raise ExperimentError(
            "training.evaluate_every must be 1 for folds that train together on one device; "
            'or set division.fold_mode = "folds-over-workers"'
        )
    whole = resident(first.splits.train)
    for task in tasks:
        found = resident(task.splits.train)
        if (found and found[0]) is not (whole and whole[0]):
            raise ExperimentError("tasks that train together on one device must select their samples from one data set")
        if task.experiment.replace(name="") != first.experiment.replace(name="") or task.workers != 1:
            raise ExperimentError(
                "tasks that train together on one device must have the same settings, and one worker each"
            )
