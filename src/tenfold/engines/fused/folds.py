"""Independent tasks on one device, each a row: the folds of a cross-validation."""

from collections.abc import Sequence
from typing import Any

from tenfold.data import order
from tenfold.engines.base import Outcome
from tenfold.engines.fused.lockstep import Lockstep, first_odd
from tenfold.engines.fused.setup import (
    among,
    finished_row,
    make_fused,
    numbers_of,
    predictions,
    prepare_fused,
    reviewed,
    seed_replicas,
    train_metric,
)
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.runs import Clock, Emit, Event
from tenfold.training.fused.replicas import resident
from tenfold.workers.supervisor import Supervisor
from tenfold.workers.task import Task, diverged
from tenfold.workers.timekeeper import Timekeeper


class FoldTraining:
    """Independent tasks, each a row."""

    def __init__(self, tasks: Sequence[Task], clock: Clock, emits: Sequence[Emit]) -> None:
        _check_alike(tasks)
        self.tasks = tasks
        self.clock = clock
        self.emits = emits
        training = tasks[0].experiment.training
        longest = max(tasks, key=lambda task: task.steps_per_epoch)
        self.fused, _ = make_fused(longest, len(tasks), 1.0, training.warmup)
        self.numbers = [numbers_of(task.splits.train) for task in tasks]
        self.lockstep = Lockstep(self.fused, [len(task.splits.train) for task in tasks], training.batch_size)
        self.supervisors = [Supervisor(task, clock, emit) for task, emit in zip(tasks, emits, strict=True)]
        self.time = Timekeeper(clock, self._emit_to_all, 0)
        self.outcomes: dict[int, Outcome | TenfoldError] = {}
        self.best: dict[int, dict[str, Any]] = {}

    @property
    def going(self) -> list[int]:
        """The folds that are not done."""
        return [row for row in range(len(self.tasks)) if row not in self.outcomes]

    def train(self) -> list[Outcome | TenfoldError]:
        """Train all to the end."""
        epochs = self.tasks[0].experiment.training.epochs
        for supervisor in self.supervisors:
            supervisor.start(resumed=False)
        prepare_fused(self.fused, self.lockstep, epochs, self.clock, self.emits)
        self.time.begin()
        for epoch in range(epochs):
            self._train_epoch(epoch)
            self._review(epoch)
            if not self.going:
                break
        for row in self.going:
            self._finish(row)
        return [self.outcomes[row] for row in range(len(self.tasks))]

    def _train_epoch(self, epoch: int) -> None:
        tasks, training, time = self.tasks, self.tasks[0].experiment.training, self.time
        time.epoch = epoch
        seed_replicas(self.fused, [(training.seed, epoch, 0)] * len(tasks))
        orders = [order(task.shards[0], training.seed, epoch, 0) for task in tasks]
        first, last = epoch * len(self.lockstep.sizes), len(self.lockstep.sizes)
        self.losses, self.samples = [0.0] * len(tasks), [0.0] * len(tasks)
        time.skip()
        visits = [among(numbers, one) for numbers, one in zip(self.numbers, orders, strict=True)]
        for step in self.lockstep.epoch(visits):
            if step == last or tasks[0].tells_after(step):
                sums, counts = self.lockstep.window(step)
                time.lap("compute")
                for row in self.going:
                    self._log(row, epoch, first + step, sums[row], counts[row])
                time.tell()

    def _log(self, row: int, epoch: int, step: int, total: float, samples: float) -> None:
        if first_odd([total]) is not None:
            self.outcomes[row] = diverged(self.tasks[row], total, step, 0)
            return
        self.losses[row] += total
        self.samples[row] += samples
        if samples:
            rate = self.fused.rates.at(self.fused.steps - 1)
            for name, value in (("loss", total / samples), ("lr", rate)):
                self.emits[row](train_metric(self.clock, name, value, step, epoch, self.time.seconds))

    def _review(self, epoch: int) -> None:
        patient = self.tasks[0].experiment.training.patience is not None
        step = (epoch + 1) * len(self.lockstep.sizes)
        for row in self.going:
            try:
                outputs = predictions(self.tasks[row], self.fused, row, self.tasks[row].watched)
                loss, samples = self.losses[row], int(self.samples[row])
                verdict = self.supervisors[row].hear([reviewed(epoch, step, self.time.seconds, loss, samples, outputs)])
            except TenfoldError as error:
                self.outcomes[row] = error
                continue
            if verdict.best and patient:
                self.best[row] = self.fused.state(row)
            if verdict.stop:
                self._finish(row)
        self.time.lap("evaluate")
        self.time.tell()

    def _finish(self, row: int) -> None:
        own = self.fused.state(row)
        if row in self.best:
            self.fused.load(row, self.best[row])
        try:
            outputs = predictions(self.tasks[row], self.fused, row, self.tasks[row].splits.test)
            times, steps = dict(self.time.times), int(self.fused.optimizer.taken[row])
            supervisor = self.supervisors[row]
            supervisor.hear([finished_row(self.fused, row, steps, self.time.seconds, times, 0, outputs)])
            self.outcomes[row] = Outcome(supervisor.result, supervisor.weights, supervisor.outputs)
        except TenfoldError as error:
            self.outcomes[row] = error
        self.fused.load(row, own)

    def _emit_to_all(self, event: Event) -> None:
        for row in self.going:
            self.emits[row](event)


def _check_alike(tasks: Sequence[Task]) -> None:
    first = tasks[0]
    whole = resident(first.splits.train)
    for task in tasks:
        found = resident(task.splits.train)
        if (found and found[0]) is not (whole and whole[0]):
            raise ExperimentError(
                "tasks that train side by side on one device must pick their samples from one data set"
            )
        if task.experiment.replace(name="") != first.experiment.replace(name="") or task.workers != 1:
            raise ExperimentError(
                "tasks that train side by side on one device must have the same settings, and one worker each"
            )
