"""The epoch loop of replicas that step together on one device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from tenfold.data import Part
from tenfold.engines.fused.lockstep import Lockstep
from tenfold.engines.validate import validate_fused
from tenfold.errors import ExperimentError, ModelError
from tenfold.machine import cores, devices
from tenfold.machine.process_state import keeping_freed_memory, memory_use, peak_memory
from tenfold.runs import Emit, Metric, Note, Stopwatch, Warned, stored_predictions
from tenfold.training import choose_loss, choose_metrics
from tenfold.training.evaluation import EvaluatedShare, evaluate_share
from tenfold.training.fused.fused_replicas import Fused, resident
from tenfold.training.graphs import describe_slow_steps
from tenfold.training.precision import set_matmul_precision
from tenfold.training.randomness import keep_rng_state, seed_everything
from tenfold.training.replica import plan_rates
from tenfold.workers.messages import EpochTrained, Finished
from tenfold.workers.task import Task, make_network
from tenfold.workers.timekeeper import Timekeeper

Seed = tuple[int, int, int]
"""Seed of the experiment, epoch, rank: what a worker seeds its random generators with."""

MOST_SPREADS = 8
"""The spread is recorded of the first replicas only: writing a thousand of them would take longer than the steps."""


class FusedTraining(ABC):
    """Trains fused replicas epoch by epoch; a subclass says what the replicas are.

    They are the workers of one task (`ReplicaTraining`: rounds, one supervisor, checkpoints) or independent tasks
    (`FoldTraining`: one supervisor for each, and rounds among its workers).
    """

    def __init__(self, fused: Fused, lockstep: Lockstep, epochs: int, stopwatch: Stopwatch, emit: Emit) -> None:
        self.fused = fused
        self.lockstep = lockstep
        self.epochs = epochs
        self.stopwatch = stopwatch
        self.time = Timekeeper(stopwatch, emit, 0)
        self._emit_training = emit
        self.epoch = 0
        self.last_step = 0
        """The step that was taken last, counted over the run."""

    def train_epochs(self, emits: Sequence[Emit]) -> None:
        """Train to the last epoch, or until `end_epoch` stops; `emits` hear how the replicas step."""
        self._prepare(emits)
        self.time.begin()
        while self.epoch < self.epochs:
            self._train_epoch()
            stop = self.end_epoch()
            for name, size in memory_use(self.fused.device).items():
                self.emit_metric(self._emit_training, name, size, self.last_step)
            self.time.lap("evaluate")
            self.epoch = self.epochs if stop else self.epoch + 1
            self.save()
            self.time.emit_sums()

    @abstractmethod
    def seeds(self) -> list[Seed]:
        """Return the seed of each replica for this epoch."""

    @abstractmethod
    def orders(self) -> list[Tensor]:
        """Return the sample numbers that each replica trains on in this epoch, in order."""

    def after_step(self, step: int) -> None:  # noqa: B027 - folds have nothing to do here
        """Do what follows a step of this epoch, such as a round; steps are counted from 1."""

    @abstractmethod
    def check_metrics(self) -> bool:
        """Try the user's own metrics after the first step, and return whether to stop."""

    @abstractmethod
    def logs_after(self, step: int) -> bool:
        """Return whether losses are logged after this step of the epoch."""

    @abstractmethod
    def log(self, step: int, sums: Sequence[float], counts: Sequence[float]) -> None:
        """Log each replica's sum of losses and its samples since the last time; `step` is counted over the run."""

    def evaluates_after(self, step: int) -> bool:  # noqa: ARG002
        """Return whether the replicas are evaluated after this step, in the middle of the epoch."""
        return False

    def evaluate(self) -> bool:
        """Evaluate the replicas in the middle of an epoch, and return whether to stop."""
        return False

    @abstractmethod
    def end_epoch(self) -> bool:
        """Evaluate the replicas after an epoch, and return whether to stop."""

    def save(self) -> None:  # noqa: B027
        """Save a checkpoint, where there are checkpoints."""

    @property
    def first_step(self) -> int:
        """The number of steps before this epoch."""
        return self.epoch * len(self.lockstep.sizes)

    def diverged_at_once(self, row: int) -> bool:
        """Return whether a replica's loss was NaN or infinite in the first step of the run."""
        return self.epoch == 0 and not self.lockstep.starts_finite(row)

    def _prepare(self, emits: Sequence[Emit]) -> None:
        not_captured = self.fused.prepare(self.lockstep.shapes(self.epochs - self.epoch))
        if self.fused.failure:
            raise ModelError(f"the model failed on its first batch: {self.fused.failure}")
        for emit in emits:
            if self.fused.description:
                emit(Note(at=self.stopwatch.now(), text=self.fused.description))
            if not_captured:
                emit(Warned(at=self.stopwatch.now(), text=describe_slow_steps(not_captured)))

    def _train_epoch(self) -> None:
        time, first = self.time, self.first_step
        time.epoch = self.epoch
        _seed_replicas(self.fused, self.seeds())
        orders = self.orders()
        time.skip()
        for step in self.lockstep.epoch(orders):
            self.after_step(step)
            self.last_step = first + step
            if self.last_step == 1 and self.check_metrics():
                break
            evaluates = self.evaluates_after(step)
            if self.logs_after(step) or evaluates:
                sums, counts = self.lockstep.window(step)
                time.lap("compute")
                self.log(first + step, sums, counts)
                time.emit_sums()
            if evaluates:
                stop = self.evaluate()
                time.lap("evaluate")
                if stop:
                    break

    def emit_losses(self, emit: Emit, step: int, total: float, samples: float) -> None:
        """Report the mean loss of a replica since the last time, if it had samples, and the learning rate."""
        values = {"loss": total / samples} if samples else {}
        values["lr"] = self.fused.rates.at(self.fused.steps - 1)
        for name, value in values.items():
            self.emit_metric(emit, name, value, step)

    def emit_spread(self, emit: Emit, step: int, spread: Sequence[float]) -> None:
        """Report how far replicas were from their average before a round, in the order of their ranks."""
        for rank, value in enumerate(spread[:MOST_SPREADS]):
            self.emit_metric(emit, "spread", value, step, rank)

    def emit_metric(self, emit: Emit, name: str, value: float, step: int, worker: int = 0) -> None:
        """Report a measurement of training."""
        emit(
            Metric(
                at=self.stopwatch.now(),
                name=name,
                value=value,
                part="train",
                step=step,
                epoch=self.epoch,
                seconds=self.time.seconds,
                worker=worker,
            )
        )

    def evaluated(self, task: Task, row: int, name: str, keep: int) -> EvaluatedShare | None:
        """Return what a part says of one replica; None without a part. `keep` is that of `evaluate_share`."""
        part: Part | None = getattr(task.splits, name)
        if part is None:
            return None
        training, classes = task.experiment.training, task.splits.classes
        return evaluate_share(
            self.fused.stack.network_at(row),
            part,
            torch.arange(len(part)),
            choose_loss(training, classes),
            choose_metrics(training, classes),
            precision=training.precision,
            keep=keep,
            name=name,
        )

    def evaluated_while_training(self, task: Task, row: int) -> EvaluatedShare | None:
        """Return what the evaluation part says of one replica; None without such a part."""
        return self.evaluated(task, row, task.evaluation_part_name, task.kept_while_training)

    def evaluated_at_the_end(self, task: Task, row: int) -> EvaluatedShare | None:
        """Return what the test part says of one replica; None without such a part."""
        return self.evaluated(task, row, "test", stored_predictions.LIMIT)

    def epoch_trained(self, loss: float, samples: float, share: EvaluatedShare | None) -> EpochTrained:
        """Return the message to the supervisor that ends an epoch."""
        return EpochTrained(
            epoch=self.epoch,
            step=self.last_step,
            seconds=self.time.seconds,
            loss=loss,
            samples=int(samples),
            share=share,
        )

    def finished(self, row: int, steps: int, share: EvaluatedShare | None, *, bytes_moved: int = 0) -> Finished:
        """Return the message to the supervisor that ends the training, with the weights of one replica."""
        return Finished(
            step=steps,
            seconds=self.time.seconds,
            times=dict(self.time.times),
            bytes_moved=bytes_moved,
            share=share,
            weights={name: tensor.cpu() for name, tensor in self.fused.state(row).items()},
            memory=peak_memory(),
        )


def make_fused(task: Task, k: int, *, scale: float = 1.0, warmup: float | None, gradients_only: bool = False) -> Fused:
    """Return k fused replicas of a task's network."""
    found = resident(task.splits.train)
    if found is None:
        raise ExperimentError(
            "replicas on one device need data that fit on it, but these are read sample by sample; "
            "give tensors or arrays, and set data.loader_workers = 0 and data.loader = auto"
        )
    training, machine = task.experiment.training, task.experiment.machine
    validate_fused(task.experiment)
    network = make_network(task).to(devices.resolve(machine.device))
    rates = plan_rates(training, network, steps_per_epoch=task.steps_per_epoch, rate_scale=scale, warmup=warmup)
    loss = choose_loss(training, task.splits.classes)
    return Fused(network, k, training, loss, found[0], rates=rates, method=machine.fused, gradients_only=gradients_only)


def resident_numbers(part: Part) -> Tensor | None:
    """Return the numbers of a part's samples among those on the device; None if they are the same."""
    found = resident(part)
    return found[1] if found else None


def select(numbers: Tensor | None, order: Tensor) -> Tensor:
    """Return the numbers on the device of the samples in this order."""
    return order if numbers is None else numbers.index_select(0, order.to(numbers.device))


@contextmanager
def on_device(task: Task) -> Iterator[None]:
    """Use all cores while the block lasts, and leave random generators and settings as they were."""
    before = torch.get_num_threads()
    cores.set_threads(task.experiment.machine.threads or cores.budget())
    try:
        with keeping_freed_memory(), keep_rng_state(), set_matmul_precision(task.experiment.training.precision):
            yield
    finally:
        torch.set_num_threads(before)


def _seed_replicas(fused: Fused, seeds: Sequence[Seed]) -> None:
    """Give each replica the random generator it would have alone, as far as the method of stepping allows."""
    states = []
    for seed in seeds if fused.has_own_generators else []:
        seed_everything(*seed)
        states.append(torch.get_rng_state())
    fused.seed(states)
    seed_everything(*seeds[0])
