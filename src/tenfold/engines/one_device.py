"""Replicas on one device that go through an epoch in the same steps, whatever the sizes of their shards."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, zip_longest
from typing import Any

import torch
from torch import Tensor

from tenfold.data import Part, batch_sizes, order
from tenfold.engines.base import Engine
from tenfold.engines.choose import (
    is_launched,
    require_launcher_for_transport,
    require_no_ranks,
    steps_together,
)
from tenfold.engines.recording import Outcome
from tenfold.engines.stacked_rounds import StackedRounds
from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.machine import cores, devices
from tenfold.machine.liveness import keeping_freed_memory
from tenfold.mixing.builders import lr_scale, make_strategy, warmup_epochs
from tenfold.runs import Emit, Note, Stopwatch, stored_predictions
from tenfold.runs.checkpoint import Resumption
from tenfold.training import choose_loss, choose_metrics
from tenfold.training.evaluation import EvaluatedShare
from tenfold.training.graphs import describe_slow_steps
from tenfold.training.randomness import random_turn, seed_everything, training_rng
from tenfold.training.replica import plan_lr_schedule, set_matmul_precision
from tenfold.training.stacked_replicas import Shape, StackedReplicas, resident
from tenfold.workers.coordinator import Coordinator
from tenfold.workers.model_errors import check_metrics, check_outputs, make_divergence_error
from tenfold.workers.task import Decision, EpochTrained, Evaluated, Finished, Message, Task, make_network
from tenfold.workers.worker import TrainingLoop


class Lockstep:
    """Steps k stacked replicas through an epoch.

    Neighboring rows whose batches have the same size step at once, so that a step costs the same Python code for any
    k. At the end of an epoch, where sizes differ, a step may take a few turns; rows without samples left are skipped.
    """

    def __init__(self, stacked: StackedReplicas, lengths: Sequence[int], batch_size: int) -> None:
        self.stacked = stacked
        self.batch_size = batch_size
        self.sizes = list(zip_longest(*(batch_sizes(length, batch_size) for length in lengths), fillvalue=0))
        """For each step, how many samples each replica has."""
        self.turns = [list(_equal_runs(sizes)) for sizes in self.sizes]
        self._weights = torch.tensor(self.sizes, dtype=torch.float64)
        self._losses = torch.zeros(len(self.sizes), stacked.k, device=stacked.device)
        self._logged = 0

    def shapes(self, epochs: int) -> Counter[Shape]:
        """Return how often each shape of a step occurs in this number of epochs."""
        one = Counter((rows.start, rows.stop, size) for turn in self.turns for rows, size in turn)
        return Counter({shape: count * epochs for shape, count in one.items()})

    def epoch(self, orders: Sequence[Tensor]) -> Iterator[int]:
        """Train on the samples in these orders, one for each replica, and yield the number of each step, from 1."""
        table = torch.nn.utils.rnn.pad_sequence(list(orders), batch_first=True).to(self.stacked.device)
        self._logged = 0
        self._losses.zero_()
        for step, turn in enumerate(self.turns):
            start = step * self.batch_size
            self.stacked.advance()
            for rows, size in turn:
                self._losses[step, rows] = self.stacked.learn(table[rows, start : start + size], rows)
            yield step + 1

    def window(self, step: int) -> tuple[list[float], list[float]]:
        """Return each replica's sum of losses over its samples, and their number, since the last call in this epoch."""
        steps = slice(self._logged, step)
        self._logged = step
        weights = self._weights[steps]
        factors = weights.clamp(max=1) if getattr(self.stacked.loss, "is_sum", False) else weights
        sums = torch.where(weights > 0, self._losses[steps].cpu().double() * factors, 0.0).sum(0)
        return sums.tolist(), weights.sum(0).tolist()

    def starts_finite(self, row: int) -> bool:
        """Return whether a replica's loss was finite in the first step of this epoch."""
        return math.isfinite(float(self._losses[0, row]))


def find_diverged(sums: Sequence[float]) -> int | None:
    """Return the first replica whose loss is not finite."""
    return next((row for row, total in enumerate(sums) if not math.isfinite(total)), None)


def _equal_runs(sizes: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield the rows that lie side by side and have batches of one size, with that size."""
    start = 0
    for size, members in groupby(sizes):
        stop = start + len(list(members))
        if size:
            yield slice(start, stop), size
        start = stop


Seed = tuple[int, int, int]
"""Seed of the experiment, epoch, rank: what a worker seeds its random generators with."""

MakeMessage = Callable[[EvaluatedShare | None], Message]
"""Makes the message to a coordinator, given what the evaluation part says of the mean of the replicas."""

MOST_SPREADS = 8
"""The spread is recorded of the first replicas only: writing a thousand of them would take longer than the steps."""


class StackedTraining(TrainingLoop):
    """Trains stacked replicas; a subclass says what the replicas are.

    They are the workers of one task (`ReplicaTraining`: rounds, one coordinator, checkpoints) or independent tasks
    (`FoldTraining`: one coordinator for each, and rounds among its workers).
    """

    def __init__(
        self, stacked: StackedReplicas, lockstep: Lockstep, epochs: int, stopwatch: Stopwatch, emit: Emit
    ) -> None:
        super().__init__(stopwatch, emit)
        self.stacked = stacked
        self.lockstep = lockstep
        self.epochs, self.steps_per_epoch, self.device = epochs, len(lockstep.sizes), stacked.device
        self._window: tuple[list[float], list[float]] = ([], [])

    def prepare(self) -> None:
        """Choose how the replicas step, and capture their steps where that pays."""
        with random_turn():
            not_captured = self.stacked.prepare(self.lockstep.shapes(self.epochs - self.epoch))
        if self.stacked.failure:
            raise ModelError(f"the model failed on its first batch: {self.stacked.failure}")
        if self.stacked.description:
            self.emit(Note(at=self.stopwatch.now(), text=self.stacked.description))
        if not_captured:
            self.warn(describe_slow_steps(not_captured))

    def steps(self) -> Iterator[int]:
        """Take the steps of this epoch, each with its rounds."""
        with random_turn():
            _seed_replicas(self.stacked, self.seeds())
        orders = self.orders()
        self.time.skip()
        for step in _in_turns(self.lockstep.epoch(orders)):
            self.after_step(step)
            yield step

    def end_step(self, step: int, *, logs: bool) -> None:
        """Read the losses before a log, which waits for the device; until then steps follow without waiting."""
        if logs:
            self._window = self.lockstep.window(step)
            self.time.lap("compute")

    def log(self, step: int) -> None:
        """Log each replica's losses since the last time."""
        self.log_losses(step, *self._window)

    @abstractmethod
    def seeds(self) -> list[Seed]:
        """Return the seed of each replica for this epoch."""

    @abstractmethod
    def orders(self) -> list[Tensor]:
        """Return the sample numbers that each replica trains on in this epoch, in order."""

    def after_step(self, step: int) -> None:
        """Do what follows a step of this epoch, such as a round; steps are counted from 1."""

    @abstractmethod
    def log_losses(self, step: int, sums: Sequence[float], counts: Sequence[float]) -> None:
        """Log each replica's sum of losses and its samples since the last time; `step` is counted over the run."""

    def diverged_at_once(self, row: int) -> bool:
        """Return whether a replica's loss was NaN or infinite in the first step of the run."""
        return self.epoch == 0 and not self.lockstep.starts_finite(row)

    def emit_losses(self, emit: Emit, step: int, total: float, samples: float) -> None:
        """Report the mean loss of a replica since the last time, if it had samples, and the learning rate."""
        if samples:
            self.emit_metric("loss", total / samples, step, emit=emit)
        self.emit_metric("lr", self.stacked.lr_schedule.at(self.stacked.steps - 1), step, emit=emit)

    def emit_spread(self, emit: Emit, step: int, spread: Sequence[float]) -> None:
        """Report how far replicas were from their average before a round, in the order of their ranks."""
        for rank, value in enumerate(spread[:MOST_SPREADS]):
            self.emit_metric("spread", value, step, emit=emit, worker=rank)

    def evaluated(self, task: Task, row: int, name: str, keep: int) -> EvaluatedShare | None:
        """Return what a part says of one replica; None without a part. `keep` is that of `evaluate_share`."""
        training, classes = task.experiment.training, task.splits.classes
        loss, metrics = choose_loss(training, classes, task.splits.loss_unit), choose_metrics(training, classes)
        return self.evaluate_part(task, self.stacked.stack.network_at(row), name, keep, loss=loss, metrics=metrics)

    @contextmanager
    def mean_of_replicas(self, rounds: StackedRounds) -> Iterator[None]:
        """Give replicas that average with each other their mean for this block, and then their own weights again."""
        matrix = self.stacked.stack.matrix[rounds.rows]
        own = matrix.clone()
        rounds.use_mean_of_replicas()
        try:
            yield
        finally:
            matrix.copy_(own)

    def evaluate_mean(
        self, task: Task, rounds: StackedRounds, coordinator: Coordinator, message: MakeMessage
    ) -> tuple[Decision, dict[str, Any] | None]:
        """Evaluate the mean of a task's replicas, and return what its coordinator decides, given a message about it.

        The second value is the state_dict of the mean, if it is the best so far and is to be kept; otherwise None.
        """
        row = rounds.rows.start or 0
        with self.mean_of_replicas(rounds):
            share = self.evaluated(task, row, task.evaluation_part_name, task.kept_while_training)
            decision = coordinator.decide([message(share)])
            keeps = decision.best and task.experiment.training.patience is not None
            return decision, self.stacked.state(row) if keeps else None

    def evaluated_at_the_end(self, task: Task, row: int) -> EvaluatedShare | None:
        """Return what the test part says of one replica; None without such a part."""
        return self.evaluated(task, row, "test", stored_predictions.LIMIT)

    def epoch_trained(self, loss: float, samples: float, share: EvaluatedShare | None) -> EpochTrained:
        """Return the message to the coordinator that ends an epoch."""
        return EpochTrained(
            epoch=self.epoch,
            step=self.last_step,
            seconds=self.time.seconds,
            loss=loss,
            samples=int(samples),
            share=share,
        )

    def finished(self, row: int, steps: int, share: EvaluatedShare | None, bytes_moved: Sequence[float]) -> Finished:
        """Return the message to the coordinator that ends the training, with the weights of one replica."""
        weights = {name: tensor.cpu() for name, tensor in self.stacked.state(row).items()}
        return self.make_final_message(steps, share, weights, max(bytes_moved))


def make_stacked(
    task: Task, k: int, *, scale: float = 1.0, warmup: float | None, gradients_only: bool = False
) -> StackedReplicas:
    """Return k stacked replicas of a task's network."""
    found = resident(task.splits.train)
    if found is None:
        raise ExperimentError(
            "replicas on one device need data that fit on it, but these are read sample by sample; "
            "give tensors or arrays, and set data.loader_workers = 0 and data.loader = auto"
        )
    training, machine = task.experiment.training, task.experiment.machine
    if (reason := cannot_step_together(task.experiment)) is not None:
        raise ExperimentError(reason)
    network = make_network(task).to(devices.resolve(machine.device))
    lr_schedule = plan_lr_schedule(
        training,
        network,
        steps_per_epoch=task.steps_per_epoch,
        lr_scale=scale,
        labels_per_sample=task.splits.labels_per_sample,
        warmup=warmup,
    )
    loss = choose_loss(training, task.splits.classes, task.splits.loss_unit)
    return StackedReplicas(
        network,
        k,
        training,
        loss,
        found[0],
        lr_schedule=lr_schedule,
        method=machine.stacking,
        gradients_only=gradients_only,
    )


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
        with keeping_freed_memory(), training_rng(), set_matmul_precision(task.experiment.training.precision):
            yield
    finally:
        torch.set_num_threads(before)


def _in_turns(steps: Iterator[int]) -> Iterator[int]:
    """Yield the number of each step, which is taken while no other training draws random numbers."""
    while True:
        with random_turn():
            step = next(steps, None)
        if step is None:
            return
        yield step


def _seed_replicas(stacked: StackedReplicas, seeds: Sequence[Seed]) -> None:
    """Give each replica the random generator it would have alone, as far as the method of stepping allows."""
    states = []
    for seed in seeds if stacked.has_own_generators else []:
        seed_everything(*seed)
        states.append(torch.get_rng_state())
    stacked.seed(states)
    seed_everything(*seeds[0])


class ReplicaTraining(StackedTraining):
    """The replicas of one task, which average in rounds."""

    def __init__(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> None:
        training, parallel = task.experiment.training, task.parallel
        self.task = task
        self.resumption = resumption
        self.by_gradients = parallel.average == "gradients"
        stacked = make_stacked(
            task,
            task.workers,
            scale=lr_scale(task.experiment),
            warmup=warmup_epochs(task.experiment),
            gradients_only=self.by_gradients,
        )
        lockstep = Lockstep(stacked, [len(shard) for shard in task.shards], training.samples_per_step)
        super().__init__(stacked, lockstep, training.epochs, stopwatch, emit)
        self.rounds = StackedRounds(parallel, stacked, [float(len(shard)) for shard in task.shards])
        self.coordinator = Coordinator(task, stopwatch, emit, resumption.manifest if resumption else None)
        self.best: dict[str, Any] | None = None
        self._numbers = resident_numbers(task.splits.train)
        self.loss, self.samples = 0.0, 0.0

    def train(self) -> Outcome:
        """Train to the end."""
        if self.resumption is not None:
            self._resume(self.resumption.state(0))
        self.coordinator.start(resumed=self.resumption is not None)
        self.train_epochs()
        return Outcome.of(self.coordinator)

    def seeds(self) -> list[Seed]:
        """Return a seed for each rank, as its worker would have."""
        return [(self.task.experiment.training.seed, self.epoch, rank) for rank in range(self.task.workers)]

    def orders(self) -> list[Tensor]:
        """Return the order in which each rank visits its shard."""
        self.loss, self.samples = 0.0, 0.0
        seed = self.task.experiment.training.seed
        orders = [order(shard, seed, self.epoch, rank) for rank, shard in enumerate(self.task.shards)]
        return [select(self._numbers, order) for order in orders]

    def after_step(self, step: int) -> None:
        """Carry out the round that is due."""
        if self.by_gradients:
            self.rounds.step_by_gradients(self.lockstep.sizes[step - 1])
        self.rounds.average_weights_if_due(self.first_step + step)

    def check_metrics(self) -> bool:
        """Try the user's own metrics on the first replica; one that fails stops the run."""
        self.time.lap("compute")
        check_metrics(self.task, self.stacked.stack.network_at(0))
        self.warn(check_outputs(self.task, self.stacked.stack.network_at(0)))
        self.time.lap("evaluate")
        return False

    def logs_after(self, step: int) -> bool:
        """Return what the task's `log_every` says."""
        return self.task.logs_after(step)

    def log_losses(self, step: int, sums: Sequence[float], counts: Sequence[float]) -> None:
        """Report the loss of rank 0 and the spread of the replicas, and stop the run if any rank diverged."""
        rank = find_diverged(sums)
        if rank is not None:
            first = self.diverged_at_once(rank)
            raise make_divergence_error(self.task, sums[rank], step, rank, from_the_start=first)
        self.emit_losses(self.emit, step, sums[0], counts[0])
        self.emit_spread(self.emit, step, self.rounds.take_distances_from_mean())
        self.loss, self.samples = self.loss + sum(sums), self.samples + sum(counts)

    def evaluates_after(self, step: int) -> bool:
        """Return what the task's `evaluate_every` says."""
        return step in self.task.evaluation_steps

    def evaluate(self) -> bool:
        """Evaluate the mean of all replicas, which then continue from their own weights."""
        return self._decide(
            lambda share: Evaluated(epoch=self.epoch, step=self.last_step, seconds=self.time.seconds, share=share)
        )

    def end_epoch(self) -> bool:
        """Evaluate the mean of all replicas, which then continue from their own weights."""
        return self._decide(lambda share: self.epoch_trained(self.loss, self.samples, share))

    def _decide(self, message: MakeMessage) -> bool:
        decision, best = self.evaluate_mean(self.task, self.rounds, self.coordinator, message)
        self.best = best or self.best
        if decision.loss is not None:
            self.stacked.lr_schedule.observe(decision.loss, decision.metric)
        return decision.stop

    def save(self) -> None:
        """Save the state of all replicas, and report it."""
        self.coordinator.decide([self.save_state(self.task.checkpoints, self._state)])
        self.time.lap("save")

    def _state(self) -> dict[str, Any]:
        return {
            "replicas": self.stacked.tensors(),
            "steps": self.stacked.steps,
            "rounds": self.rounds.state(),
            "best": self.best,
            **self.progress_state(),
            **self.stacked.lr_schedule.state(),
        }

    def _resume(self, state: dict[str, Any]) -> None:
        own = self.stacked.tensors()
        try:
            for name, tensor in state["replicas"].items():
                own[name].copy_(tensor)
        except (RuntimeError, KeyError) as error:
            raise ModelError(f"the checkpoint does not fit model {self.task.experiment.model.name}: {error}") from None
        self.rounds.load(state["rounds"])
        self.stacked.lr_schedule.load(state)
        self.stacked.steps, self.best = state["steps"], state["best"]
        self.resume_progress(state)

    def finish(self) -> None:
        """Report the mean of all replicas, or the best weights so far."""
        self.time.skip()
        self.rounds.use_mean_of_replicas()
        if not self.task.ends_equal(self.stacked.steps):
            self.time.lap("communicate")
        if self.best is not None:
            self.stacked.load(0, self.best)
        share = self.evaluated_at_the_end(self.task, 0)
        self.time.lap("evaluate")
        self.coordinator.decide([self.finished(0, self.stacked.steps, share, self.rounds.bytes_moved)])


class OneDevice(Engine):
    """Trains several workers on one GPU, or on the CPU if requested."""

    name = "one-device"

    @classmethod
    def supports(cls, experiment: Experiment, world: World | None) -> str | None:
        """Return why replicas that step together on one device cannot train the experiment."""
        unsupported = require_no_ranks(cls.name, world) or require_launcher_for_transport(experiment)
        return unsupported or cannot_step_together(experiment)

    @classmethod
    def is_usual(cls, experiment: Experiment, world: World | None) -> bool:
        """Return whether there are several workers on a GPU, which no launcher started."""
        return steps_together(experiment) and not is_launched(experiment, world)

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end."""
        return train_replicas(task, stopwatch, emit, resumption)


def cannot_step_together(experiment: Experiment) -> str | None:
    """Return what replicas that step together on one device cannot do, in a sentence; None if they can do all of it."""
    training, parallel = experiment.training, experiment.parallel
    if training.precision == "fp16":
        return 'training.precision = "fp16" is not supported for replicas on one device; use "bf16"'
    if training.ema is not None:
        return (
            f"training.ema = {training.ema:g} is not supported for replicas that step together on one device; leave it "
            'unset, or set parallel.fold_mode to "fold-by-fold"'
        )
    if training.accumulate > 1:
        return (
            f"training.accumulate = {training.accumulate}: replicas on one device fit into memory already; set it "
            'to 1, or parallel.fold_mode to "fold-by-fold"'
        )
    if training.activation_checkpointing:
        return (
            "training.activation_checkpointing is not supported for replicas that step together on one device; leave "
            'it unset, or set parallel.fold_mode to "fold-by-fold"'
        )
    if parallel.workers > 1 and make_strategy(parallel).asynchronous:
        return (
            f'parallel.strategy = "{parallel.strategy}" has no rounds, but replicas on one device step '
            "together; use a strategy with rounds, such as allreduce"
        )
    return None


def train_replicas(task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
    """Train all replicas of one task on one device, with their rounds."""
    with on_device(task):
        return ReplicaTraining(task, stopwatch, emit, resumption).train()
