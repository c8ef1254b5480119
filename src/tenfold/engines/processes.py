"""The engines for this machine: `Serial` in this process, and `Processes`, which average in shared memory."""

from contextlib import closing
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from tenfold.engines.base import Engine, Outcome
from tenfold.engines.prepare import is_launched, trains_on_cpu, why_not_among_ranks, why_transport_needs_launcher
from tenfold.errors import ExperimentError, MachineError, WorkerLost, name_workers
from tenfold.experiment import Experiment
from tenfold.launchers import World
from tenfold.machine import cores
from tenfold.machine.liveness import WorkerProgress
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Emit, Event, Note, Stopwatch, Warned
from tenfold.training.replica import training_environment
from tenfold.transport import clean_up_orphans
from tenfold.transport.segment import StopReason
from tenfold.workers.channels import SharedChannels, single_worker_channels
from tenfold.workers.coordinator import Coordinator, Decision, Finished, Message
from tenfold.workers.divided import DividedChannels
from tenfold.workers.elastic import Replacement
from tenfold.workers.fork_server import check_may_start, start_server
from tenfold.workers.pool import WorkerPool
from tenfold.workers.process import TaskSnapshot, WorkerSetup, check_room, run_workers
from tenfold.workers.task import Resolved, Task
from tenfold.workers.worker import Worker


class Processes(Engine):
    """Trains every replica in a separate process; `Engine.train` calls `prepare`, then `run` while recording."""

    name = "processes"
    divides_models = True
    predictable = True
    can_continue = True
    """Whether the other workers can continue when one is lost."""

    @classmethod
    def supports(cls, experiment: Experiment, world: World | None) -> str | None:
        machine = experiment.machine
        if experiment.parallel.workers > 1 and not trains_on_cpu(experiment):
            return (
                f'machine.engine = "{machine.engine}" runs several workers on CPU only, but machine.device = '
                f'"{machine.device}"; use auto, with which all step together on one GPU, or start one rank per GPU '
                "with torchrun"
            )
        return why_not_among_ranks(cls.name, world) or why_transport_needs_launcher(experiment)

    @classmethod
    def is_usual(cls, experiment: Experiment, world: World | None) -> bool:
        several = experiment.parallel.workers > 1 and not is_launched(experiment, world)
        return several and trains_on_cpu(experiment)

    def prepare(self, resolved: Resolved) -> Task:
        """Load the data while the fork server of the workers imports torch."""
        check_may_start()
        start_server()
        task = super().prepare(resolved)
        cores.check_open_files(len(self._ranks_by_process(task)))  # before anything is recorded
        if task.device.type == "cpu":
            check_room(task.splits)
        return task

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end; if a worker is lost, replace it or raise WorkerLost, as the experiment specifies."""
        clean_up_orphans()
        if resumption is not None:
            task = divide_among(task, len(resumption.ranks))
        machine = task.experiment.machine
        elastic = self.can_continue and machine.on_failure == "continue" and task.workers > 1
        coordinator = Coordinator(task, stopwatch, emit, resumption.manifest if resumption else None)
        ranks = self._ranks_by_process(task)
        with closing(_make_channels(task)) as channels, closing(TaskSnapshot(task)) as snapshot:
            setup = WorkerSetup(
                snapshot=snapshot,
                channels=channels,
                stopwatch=stopwatch,
                ranks_by_process=ranks,
                resumption=resumption,
                exchange_times=self._exchange_times(),
                elastic=elastic,
            )
            pool = WorkerPool(len(ranks), run_workers, (setup,), ranks=ranks, stall_after=machine.stall_after)
            replacement = None
            if elastic and isinstance(channels, SharedChannels):
                replacement = Replacement(pool, channels, coordinator, machine.replacements)
            try:
                coordinator.start(resumed=resumption is not None)
                self._coordinate(pool, coordinator, emit, replacement)
                pool.join()
            except WorkerLost as error:
                channels.stop(StopReason.DIED, error.rank)
                raise
            finally:
                pool.end()
        return Outcome.of(coordinator)

    def _ranks_by_process(self, task: Task) -> list[range]:
        return [range(rank, rank + 1) for rank in range(task.workers)]

    def _exchange_times(self) -> NDArray[Any] | None:
        """Return the predicted times at which each worker's steps end [steps, workers]; None on a real machine."""
        return None

    def _coordinate(
        self, pool: WorkerPool, coordinator: Coordinator, emit: Emit, replacement: Replacement | None
    ) -> None:
        """Forward events, and answer the workers when all have sent a message of the same kind, until all finish.

        Without `replacement`, the loss of a worker ends the training.
        """
        received: dict[int, tuple[Message, ...]] = {}
        warned: set[str] = set()
        while True:
            try:
                for process, content in pool.messages():
                    if isinstance(content, list):
                        _pass_on(content, emit, warned)
                    elif isinstance(content, BaseException):
                        raise _named(content, pool.ranks[process])
                    elif replacement is None or not replacement.handle(process, content):
                        received[process] = content
                    if replacement is not None and not received:
                        replacement.invite()
                    awaited = replacement.roster.members if replacement is not None else range(len(pool.processes))
                    if not received or len(received) < len(awaited):
                        continue
                    if _answer_all(received, pool, coordinator, replacement):
                        return
                    received = {}
            except WorkerLost as lost:
                if replacement is None:
                    raise
                replacement.lose(lost)
                received = {}


def divide_among(task: Task, workers: int) -> Task:
    """Return the task with its data divided among `workers` workers."""
    return task if workers == task.workers else replace(task, resolved=task.resolved.replace(workers=workers))


def _answer_all(
    received: dict[int, tuple[Message, ...]],
    pool: WorkerPool,
    coordinator: Coordinator,
    replacement: Replacement | None,
) -> bool:
    """Send all processes the coordinator's decision on their messages; return whether the training has finished."""
    messages = [message for process in sorted(received) for message in received[process]]
    decision = coordinator.decide(messages)
    for process in received:
        pool.send(process, decision)
    if replacement is not None:
        replacement.note_answer(messages[0])
    return isinstance(messages[0], Finished)


def _pass_on(events: list[Event], emit: Emit, warned: set[str]) -> None:
    """Emit the events of a worker, but a warning that several workers emit only once."""
    for event in events:
        if isinstance(event, Warned):
            if event.text in warned:
                continue
            warned.add(event.text)
        emit(event)


def _make_channels(task: Task) -> SharedChannels | DividedChannels:
    metadata, exchanges = task.metadata, task.parallel.needs_gradient_buffer
    if task.division is not None:
        return DividedChannels(
            task.replicas, task.division, task.strategy, averages_gradients=exchanges, dtype=metadata.dtype
        )
    exchanged = metadata.exchange_numel if exchanges else 0
    return SharedChannels(
        task.workers,
        metadata.numel,
        strategy=task.strategy,
        gradient_numel=exchanged,
        dtype=metadata.dtype,
        vector_rows=task.vector_rows,
    )


def _named(error: BaseException, ranks: range) -> BaseException:
    """Return the error of a process with the names of its workers; WorkerLost names the lost worker already."""
    if isinstance(error, WorkerLost):
        return error
    if isinstance(error, RuntimeError):
        return RuntimeError(f"{name_workers(ranks)} failed:\n{error}")
    error.args = (f"{name_workers(ranks)}: {error}",)
    return error


BUSY = "other programs use most of the cores, and the threads of this one would not sleep while they wait"
IN_A_PROCESS = f"{BUSY}: the worker trains in a process of its own"
SPINNING = f"{BUSY}: set {cores.WAIT_POLICY}=PASSIVE before Python starts"


class Serial(Engine):
    """Trains one replica in this process."""

    name = "serial"
    predictable = True

    @classmethod
    def supports(cls, experiment: Experiment, world: World | None) -> str | None:
        if (workers := experiment.parallel.workers) > 1:
            return f'machine.engine = "serial" runs one worker, but parallel.workers = {workers}; use auto or processes'
        return why_not_among_ranks(cls.name, world) or why_transport_needs_launcher(experiment)

    @classmethod
    def is_usual(cls, experiment: Experiment, world: World | None) -> bool:
        return experiment.parallel.workers == 1 and not is_launched(experiment, world)

    def __init__(self, progress: WorkerProgress | None = None) -> None:
        """`progress` is published for the process that watches this one, if there is one."""
        self._is_watched = progress is not None
        self._progress = progress or WorkerProgress()

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end; in a separate process if threads of this one would slow the training down."""
        chosen = task.experiment.machine.engine == "auto" and not self._is_watched
        if chosen and task.device.type == "cpu" and task.threads > 1 and cores.waiting_threads_spin():
            if (trouble := _why_not_sent(task)) is None:
                emit(Note(at=stopwatch.now(), text=IN_A_PROCESS))
                return Processes().run(task, stopwatch, emit, resumption)
            emit(Warned(at=stopwatch.now(), text=f"{SPINNING} ({trouble})"))
        with training_environment(task.threads, task.experiment.training.precision, task.cores.cpus(0)) as trouble:
            if trouble:
                emit(Warned(at=stopwatch.now(), text=trouble))
            return self._run(task, stopwatch, emit, resumption)

    def _run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None) -> Outcome:
        coordinator = Coordinator(task, stopwatch, emit, resumption.manifest if resumption else None)
        metadata, rows = task.metadata, task.vector_rows
        channels = single_worker_channels(metadata.numel, task.device, task.strategy, metadata.dtype, rows)

        def report(message: Message) -> Decision:
            with self._progress.allow_more_time():
                return coordinator.decide([message])

        worker = Worker(task, channels, stopwatch, emit, report, self._progress)
        if resumption is not None:
            worker.resume(resumption.state(0))
        coordinator.start(resumed=resumption is not None)
        worker.train()
        return Outcome.of(coordinator)


def _why_not_sent(task: Task) -> str | None:
    """Return why a separate process cannot train the task; None if it can."""
    try:
        check_may_start()
        check_room(task.splits)
        TaskSnapshot(task).close()
    except (ExperimentError, MachineError) as error:
        return str(error)
    return None
