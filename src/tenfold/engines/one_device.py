"""Replicas that step together on one device: the workers of one task, or of several folds or trials."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tenfold.engines.base import Engine, Outcome
from tenfold.engines.prepare import is_launched, trains_on_cpu, why_not_among_ranks, why_transport_needs_launcher
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.experiment import Experiment, Training
from tenfold.launchers import World
from tenfold.machine import cores
from tenfold.models.networks import scaling_buffers
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Emit, Event, Stopwatch
from tenfold.training import base_lr
from tenfold.training.replica import training_environment
from tenfold.training.schedules import SCHEDULES, plan_lr_schedule
from tenfold.training.stack import StackedReplicas
from tenfold.training.stacked_optimizers import make_rule
from tenfold.training.stacked_replicas import Lockstep, ReplicaRows, resident
from tenfold.workers.channels import Channels, StackedTransport
from tenfold.workers.coordinator import Coordinator, Decision, Message
from tenfold.workers.task import Resolved, Task, make_network
from tenfold.workers.worker import Timekeeper, Worker

NUMBERS = ("lr", "momentum", "weight_decay", "seed")
"""The fields in which tasks that train together may differ."""


class OneDevice(Engine):
    """Trains several workers on one GPU, or on the CPU if requested."""

    name = "one-device"
    steps_together = True

    @classmethod
    def supports(cls, experiment: Experiment, world: World | None) -> str | None:
        unsupported = why_not_among_ranks(cls.name, world) or why_transport_needs_launcher(experiment)
        return unsupported or cannot_step_together(experiment)

    @classmethod
    def is_usual(cls, experiment: Experiment, world: World | None) -> bool:
        several = experiment.parallel.workers > 1 and not is_launched(experiment, world)
        return several and not trains_on_cpu(experiment)

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        return train_replicas(task, stopwatch, emit, resumption)


def cannot_step_together(experiment: Experiment) -> str | None:
    """Return a sentence that explains why stacked replicas cannot train this experiment; None if they can."""
    training, parallel = experiment.training, experiment.parallel
    if training.precision == "fp16":
        return 'training.precision = "fp16" is not supported for replicas on one device; use "bf16"'
    if training.activation_checkpointing:
        return (
            "training.activation_checkpointing is not supported for replicas that step together on one device; leave "
            'it unset, or set parallel.fold_mode to "fold-by-fold"'
        )
    if parallel.workers > 1 and parallel.is_asynchronous:
        return (
            f'parallel.strategy = "{parallel.strategy}" has no rounds, but replicas on one device step '
            "together; use a strategy with rounds, such as allreduce"
        )
    return None


def train_replicas(task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
    """Train all replicas of one task on one device, including their rounds."""
    with on_device(task):
        coordinator = Coordinator(task, stopwatch, emit, resumption.manifest if resumption else None)
        [worker] = _make_workers([task], [coordinator])
        if resumption is not None:
            worker.resume(resumption.state(0))
        coordinator.start(resumed=resumption is not None)
        worker.train()
        return Outcome.of(coordinator)


def train_together(tasks: Sequence[Task], stopwatch: Stopwatch, emits: Sequence[Emit]) -> list[Outcome | TenfoldError]:
    """Train independent tasks together on one device: same model and data set, but samples and NUMBERS may differ.

    The workers of a task average in rounds, and its events go to its own `emit`. A failed task returns its error
    in place of an outcome, and does not stop the others. The time of each task is the time of all, because they share
    the device.
    """
    _check_compatible(tasks)
    outcomes: dict[int, Outcome | TenfoldError] = {}
    present = list(range(len(tasks)))
    """The tasks whose time it is now."""

    def emit_to_present(event: Event) -> None:
        for index in present:
            emits[index](event)

    with on_device(tasks[0]):
        coordinators = [Coordinator(task, stopwatch, emit) for task, emit in zip(tasks, emits, strict=True)]
        for coordinator in coordinators:
            coordinator.start(resumed=False)
        time = Timekeeper(stopwatch, emit_to_present, 0, single=0)
        workers = _make_workers(tasks, coordinators, time)
        if workers[0].replica.lr_schedule.wants_metric:
            raise ExperimentError(
                f"training.schedule = {tasks[0].experiment.training.lr_schedule_name} depends on a metric, but folds "
                "that train together on one device share one learning rate; set parallel.fold_mode = "
                '"folds-over-workers"'
            )
        turns = {index: worker.turns() for index, worker in enumerate(workers)}
        places: dict[int, tuple[int, int]] = {}
        """The epoch and the step that comes next of each task that is training."""

        def advance(index: int) -> None:
            try:
                places[index] = next(turns[index])
                return
            except StopIteration:
                outcomes[index] = Outcome.of(coordinators[index])
            except TenfoldError as error:
                outcomes[index] = error
            places.pop(index, None)

        for index in range(len(tasks)):
            advance(index)  # to the first step
        while places:
            first, present = min(places.values()), list(places)
            for index in [index for index in present if places[index] == first]:
                advance(index)
            time.emit_sums()
    return [outcomes[index] for index in range(len(tasks))]


def _make_workers(
    tasks: Sequence[Task], coordinators: Sequence[Coordinator], time: Timekeeper | None = None
) -> list[Worker]:
    """Return a worker for each task, whose replicas are neighboring rows of one stack."""
    longest = max(tasks, key=lambda task: task.steps_per_epoch)
    stacked = _make_stacked(longest, [task for task in tasks for _ in range(task.workers)])
    lengths = [len(shard) for task in tasks for shard in task.shards]
    lockstep = Lockstep(stacked, lengths, tasks[0].experiment.training.samples_per_step)
    workers, start = [], 0
    for task, coordinator in zip(tasks, coordinators, strict=True):
        rows = slice(start, start + task.workers)
        start += task.workers
        is_other = task.experiment.training.seed != longest.experiment.training.seed
        first = make_network(task).state_dict() if is_other else None
        for row in range(rows.start, rows.stop):
            if first is not None:
                stacked.stack.load(row, first)
            stacked.stack.write(row, scaling_buffers(task.splits.scaling))
        replica = ReplicaRows(lockstep, rows)

        def report(message: Message, coordinator: Coordinator = coordinator) -> Decision:
            return coordinator.decide([message])

        channels = Channels(StackedTransport(replica.vector), StackedTransport(stacked.optimizer.gradient[rows]))
        workers.append(
            Worker(task, channels, coordinator.stopwatch, coordinator.emit, report, replica=replica, time=time)
        )
    return workers


def _make_stacked(task: Task, owners: Sequence[Task]) -> StackedReplicas:
    """Return stacked replicas of a task's network, one for each owner, which may differ from the task in NUMBERS."""
    whole = resident(task.splits.train)
    if whole is None:
        raise ExperimentError(
            "replicas on one device need data in memory, but these are read sample by sample; "
            "give tensors or arrays, and set data.loader_workers = 0 and data.loader = auto"
        )
    training, machine = task.experiment.training, task.experiment.machine
    network = make_network(task)
    lr_schedule = plan_lr_schedule(
        training,
        network,
        steps_per_epoch=task.steps_per_epoch,
        lr_scale=task.resolved.lr_scale,
        labels_per_sample=task.splits.labels_per_sample,
        warmup=task.resolved.warmup_epochs,
    )
    return StackedReplicas(
        network,
        len(owners),
        training,
        task.loss,
        whole[0],
        lr_schedule=lr_schedule,
        method=machine.stacking,
        gradients_only=task.workers > 1 and task.parallel.average == "gradients",
        own=[(owner.experiment.training, owner.metadata.base_lr * owner.resolved.lr_scale) for owner in owners]
        if any(owner.experiment.training != training for owner in owners)
        else (),
    )


def on_device(task: Task) -> AbstractContextManager[str | None]:
    """Return the context in which replicas step together, with all cores."""
    experiment = task.experiment
    return training_environment(experiment.machine.threads or cores.budget(), experiment.training.precision)


def without_numbers(experiment: Experiment) -> Experiment:
    """Return an experiment without its name and the numbers in which tasks that train together may differ."""
    same: dict[str, Any] = {name: getattr(Training(), name) for name in NUMBERS}
    return experiment.model_copy(update={"name": "", "training": experiment.training.model_copy(update=same)})


def with_numbers(task: Task, experiment: Experiment) -> Task:
    """Return the task of an experiment that differs from a task's only in NUMBERS; it shares the data."""
    lr = base_lr(experiment.training, labels_per_sample=task.splits.labels_per_sample)
    return replace(task, resolved=Resolved.of(experiment), metadata=replace(task.metadata, base_lr=lr))


def cannot_train_together(task: Task) -> str:
    """Return a sentence that explains why a task cannot train together with others that differ in NUMBERS, or ""."""
    training = task.experiment.training
    if (reason := cannot_step_together(task.experiment)) is not None:
        return reason
    if training.lr_schedule_name not in SCHEDULES:
        return f"training.schedule = {training.lr_schedule_name} is your own, which may depend on the learning rate"
    if resident(task.splits.train) is None:
        return "the data are read sample by sample; give tensors or arrays, which fit on the device"
    try:
        _check_compatible([task])
        make_rule(training, make_network(task))
    except ExperimentError as error:
        return str(error)
    return ""


def _check_compatible(tasks: Sequence[Task]) -> None:
    first = tasks[0]
    whole = resident(first.splits.train)
    for task in tasks:
        its_data = resident(task.splits.train)
        if (its_data and its_data[0]) is not (whole and whole[0]):
            raise ExperimentError("tasks that train together on one device must select their samples from one data set")
        if without_numbers(task.experiment) != without_numbers(first.experiment):
            raise ExperimentError("tasks that train together on one device must have the same settings")
