"""A worker process: packing and sending its task, and running one worker, or several in turns."""

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing.connection import Connection
from time import sleep
from typing import Any, Self

import cloudpickle
import numpy as np
import torch
from greenlet import getcurrent, greenlet
from numpy.typing import NDArray
from torch import Tensor

from tenfold.data import Part, Splits, SubsetPart, Tensors
from tenfold.data.part import tree_leaves, tree_map
from tenfold.errors import ExperimentError, MachineError
from tenfold.machine import cores
from tenfold.machine.cores import apply, format_bytes
from tenfold.machine.liveness import WorkerProgress, keep_freed_memory
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Emit, Event, Printed, Stopwatch, Warned
from tenfold.runs.recorder import CONSOLE_LIMIT, original_streams, tap_streams
from tenfold.transport import SharedTensor
from tenfold.workers.channels import Channels, SharedChannels
from tenfold.workers.coordinator import Decision, Message
from tenfold.workers.divided import DividedChannels
from tenfold.workers.elastic import ElasticChannels
from tenfold.workers.fork_server import set_up_server
from tenfold.workers.pool import WorkerConnection, attach_to_parent
from tenfold.workers.task import Task
from tenfold.workers.worker import Worker


class SharedTensors(Tensors):
    """Tensors in shared memory; another process opens them without a copy."""

    def __init__(self, part: Tensors) -> None:
        self._copies: list[SharedTensor] = []
        try:
            self._shared = tree_map(self._copy, part.x), self._copy(part.y)
        except BaseException:
            self.close()
            raise

    @cached_property
    def x(self) -> Any:
        return tree_map(SharedTensor.open, self._shared[0])

    @cached_property
    def y(self) -> Tensor:  # type: ignore[override]
        return self._shared[1].open()

    def _copy(self, tensor: Tensor) -> SharedTensor:
        self._copies.append(SharedTensor(tensor))
        return self._copies[-1]

    def close(self) -> None:
        """Release the memory; processes that have it open keep it."""
        for tensor in self._copies:
            tensor.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return open_tensors, self._shared


def open_tensors(x: Any, y: SharedTensor) -> Tensors:
    return Tensors(tree_map(SharedTensor.open, x), y.open())


def in_shared_memory(splits: Splits) -> Splits:
    """Copy the parts that are tensors into shared memory, each once; the originals can be freed."""
    moved: dict[int, SharedTensors] = {}

    def move(part: Part) -> Part:
        whole = part.part if isinstance(part, SubsetPart) else part
        if isinstance(whole, Tensors) and not isinstance(whole, SharedTensors):
            if id(whole) not in moved:
                moved[id(whole)] = SharedTensors(whole)
            whole = moved[id(whole)]
        return SubsetPart(whole, part.indices) if isinstance(part, SubsetPart) else whole

    try:
        return splits.with_each(move)
    except BaseException:
        for part in moved.values():
            part.close()
        raise


def shared_parts(splits: Splits) -> list[SharedTensors]:
    """Return the parts in shared memory, each once; for a subset, the part it was taken from."""
    return [part for part in _whole_parts(splits) if isinstance(part, SharedTensors)]


def _whole_parts(splits: Splits) -> list[Part]:
    parts = [part.part if isinstance(part, SubsetPart) else part for part in splits.parts.values()]
    return list({id(part): part for part in parts}.values())


class TaskSnapshot:
    """A pickled task for the workers; the process that packs it keeps the tensors alive until `close`."""

    def __init__(self, task: Task, *, with_numbers: bool = False) -> None:
        """Pack a task; `with_numbers` includes the samples' original indices, for a process that writes predictions."""
        splits = in_shared_memory(task.splits)
        before = shared_parts(task.splits)
        self._own = [part for part in shared_parts(splits) if part not in before]
        experiment = task.experiment.replace(data="<in shared memory>", groups=None, collate=None)
        resolved = replace(task.resolved, experiment=experiment)
        sent = replace(splits, numbers=splits.numbers if with_numbers else {})
        try:
            with original_streams():
                self._content = bytes(cloudpickle.dumps(replace(task, resolved=resolved, splits=sent)))
        except Exception as error:  # a user's object may raise anything when it is pickled
            self.close()
            raise ExperimentError(
                f"the Python objects (model, data, loss) cannot be sent to worker processes: {error}; objects that "
                "cannot be pickled, such as locks and open files, must be created in the worker processes"
            ) from error

    def open(self) -> Task:
        return cloudpickle.loads(self._content)  # type: ignore[no-any-return]

    def close(self) -> None:
        for part in self._own:
            part.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_content": self._content}


def bytes_to_share(splits: Splits) -> int:
    """Return the bytes that a snapshot would put into shared memory."""
    return sum(
        tensor.nbytes
        for part in _whole_parts(splits)
        if isinstance(part, Tensors) and not isinstance(part, SharedTensors)
        for tensor in (*tree_leaves(part.x), part.y)
    )


def check_room(splits: Splits) -> None:
    """Raise MachineError if there is not enough memory for a snapshot's copy of the data."""
    needed = bytes_to_share(splits)
    free = cores.free_memory() if needed else 0
    if needed > free:
        raise MachineError(
            f"the copy of the data that worker processes share needs {format_bytes(needed)} of memory, but only "
            f"{format_bytes(free)} are free; use fewer samples (data.limit), one worker without folds, or a Dataset "
            "that reads its samples from files"
        )


set_up_server()  # does something only in the server of worker processes, where the variable is set


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """The arguments of all worker processes of a run."""

    snapshot: TaskSnapshot
    channels: SharedChannels | DividedChannels
    stopwatch: Stopwatch
    ranks_by_process: Sequence[range]
    """The workers in each process: one, or several on a virtual cluster."""
    resumption: Resumption | None = None
    """The checkpoint that they continue from."""
    exchange_times: NDArray[Any] | None = None
    """[steps, workers]; orders the exchanges of replicas without rounds that share a process."""
    elastic: bool = False
    """Whether lost workers are replaced while the others train."""


def run_workers(
    process: int, pipe: Connection, lifeline: Connection, floats: Any, setup: WorkerSetup, *, joining: bool = False
) -> None:
    """Train the replicas of one process; with `joining` it replaces a lost worker and first waits for a state."""
    progress = attach_to_parent(process, lifeline, floats)
    ranks, stopwatch = setup.ranks_by_process[process], setup.stopwatch
    connection = WorkerConnection(pipe, progress.mark_waiting)
    try:
        forward_warnings(connection.emit, stopwatch, ranks[0])
        forward_prints(connection, stopwatch, ranks[0])
        with progress.allow_more_time():
            task = setup.snapshot.open()
        if task.cores.workers:  # pinned
            problem = apply(task.cores.cpus(process))
            if problem and process == 0:
                connection.emit(Warned(at=stopwatch.now(), text=problem))
        torch.set_num_threads(task.threads)
        keep_freed_memory()
        if len(ranks) == 1 and setup.exchange_times is None:
            _train_one(ranks[0], task, setup, connection, progress, joining=joining)
        else:
            _train_several(ranks, task, setup, connection, progress)
    except BaseException as error:
        connection.fail(error)


def _train_one(
    rank: int,
    task: Task,
    setup: WorkerSetup,
    connection: WorkerConnection,
    progress: WorkerProgress,
    *,
    joining: bool,
) -> None:
    def report(message: Message) -> Decision:
        return connection.report((message,))

    channels = _open_channels(setup, rank, connection, progress)
    with progress.allow_more_time():
        worker = Worker(task, channels, setup.stopwatch, connection.emit, report, progress)
    if joining:
        assert isinstance(channels, ElasticChannels)
        worker.join(channels.join())
        worker.train()
    else:
        _train(worker, setup.resumption)


def _open_channels(setup: WorkerSetup, rank: int, connection: WorkerConnection, progress: WorkerProgress) -> Channels:
    shared = setup.channels
    if not setup.elastic:
        return shared.open(rank, waiting=progress.mark_waiting)
    assert isinstance(shared, SharedChannels), "a divided model is never elastic"
    members = tuple(range(shared.workers))
    make = partial(ElasticChannels, number=rank, members=members, ask=connection.ask, send=connection.send)
    channels = shared.open(rank, waiting=progress.mark_waiting, make=make)
    assert isinstance(channels, ElasticChannels)
    connection.is_outdated = channels.is_outdated
    return channels


def forward_warnings(emit: Emit, stopwatch: Stopwatch, rank: int) -> None:
    """In a worker process: emit Python's warnings as events that name the worker, instead of printing them."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        emit(Warned(at=stopwatch.now(), text=f"{category.__name__}: {message}", worker=rank, concerns_worker=True))

    warnings.showwarning = show


def forward_prints(connection: WorkerConnection, stopwatch: Stopwatch, rank: int) -> None:
    """In a worker process: print its output, and also send it to the coordinator with its events."""
    kept: list[str] = []

    def printed() -> list[Event]:
        count = len(kept)  # text that other threads print in the meantime is sent next time
        if not count:
            return []
        text = "".join(kept[:count])[-CONSOLE_LIMIT:]
        del kept[:count]
        return [Printed(at=stopwatch.now(), text=text, worker=rank)]

    connection.printed = printed
    tap_streams(kept.append)


def _train(worker: Worker, resumption: Resumption | None) -> None:
    if resumption is not None:
        with worker.progress.allow_more_time():
            worker.resume(resumption.state(worker.number))
    worker.train()


def _train_several(
    ranks: range, task: Task, setup: WorkerSetup, connection: WorkerConnection, progress: WorkerProgress
) -> None:
    """Train several replicas in turns, each until it waits for another."""
    scheduler = Scheduler(setup.exchange_times, progress.mark_waiting)
    batch = MessageBatch(len(ranks), connection.report, scheduler)

    def train_at(index: int) -> None:
        RngState.use_own_numpy_generator()
        rank = ranks[index]
        lock = TurnLock(scheduler, rank) if setup.exchange_times is not None else None
        channels = setup.channels.open(rank, scheduler.wait_until, lock)
        report = partial(batch.report, index)
        with progress.allow_more_time():
            worker = Worker(task, channels, setup.stopwatch, connection.emit, report, progress)
        if lock is not None:
            lock.step = lambda: worker.replica.steps
        _train(worker, setup.resumption)

    scheduler.run([partial(train_at, index) for index in range(len(ranks))])


# Several workers in one process: each runs until it must wait for another, then the next one runs.
#
# Workers are not threads: torch would create a pool of threads for each, and all threads would share the random
# generators. Each worker is a greenlet that yields only when it waits, and has its own random state and its own modes
# of autograd and autocast.

SHORTEST_NAP, LONGEST_NAP = 2e-5, 1e-3


@dataclass(frozen=True, slots=True)
class RngState:
    """The state of all random generators, for workers that take turns in one process.

    NumPy's generator is not copied, which is slow, but swapped: each worker starts with `use_own_numpy_generator`.
    """

    torch: Tensor
    numpy: Any
    python: Any

    @classmethod
    def read(cls) -> Self:
        return cls(torch.get_rng_state(), np.random.get_bit_generator(), random.getstate())  # type: ignore[attr-defined]

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        np.random.set_bit_generator(self.numpy)  # type: ignore[attr-defined]
        random.setstate(self.python)

    @staticmethod
    def use_own_numpy_generator() -> None:
        """Give NumPy a new generator for this worker."""
        np.random.set_bit_generator(np.random.MT19937())  # type: ignore[attr-defined]


class Scheduler:
    """Runs the workers of a process in turns; `exchange_times` is the order of those that ask for a turn."""

    def __init__(self, exchange_times: NDArray[Any] | None = None, waiting: Callable[[], None] = lambda: None) -> None:
        """`exchange_times` [steps, workers] are the times at which each worker's steps end; turns are granted in this
                order.

        `waiting` is called repeatedly while all workers wait for other processes.
        """
        self._waiting = waiting
        self._times = exchange_times
        self._ready: dict[greenlet, Callable[[], bool]] = {}
        self._asking: dict[greenlet, tuple[int, int]] = {}

    def run(self, workers: Sequence[Callable[[], None]]) -> None:
        """Run all workers until they finish; the first error stops all of them."""
        running = [greenlet(worker) for worker in workers]
        self._ready = dict.fromkeys(running, lambda: True)
        nap = SHORTEST_NAP
        while running:
            able = [worker for worker in running if self._ready[worker]()]
            for worker in able:
                if self._ready[worker]():
                    worker.switch()
            running = [worker for worker in running if not worker.dead]
            if able:
                nap = SHORTEST_NAP
            elif self._asking:
                self._grant_turn()
            else:  # all wait for workers of other processes
                self._waiting()
                sleep(nap)
                nap = min(2 * nap, LONGEST_NAP)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Run other workers until `ready()` is true."""
        if ready():
            return
        worker, rng_state = getcurrent(), RngState.read()
        gradients, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        self._ready[worker] = ready
        _set_modes(gradients=True, autocast=False)
        worker.parent.switch()
        _set_modes(gradients=gradients, autocast=autocast)
        rng_state.restore()

    def wait_for_turn(self, rank: int, step: int) -> None:
        """Run other workers until it is this worker's turn to exchange weights after a step."""
        worker = getcurrent()
        self._asking[worker] = rank, step
        self.wait_until(lambda: worker not in self._asking)

    def _grant_turn(self) -> None:
        """Grant the turn to the worker whose step ends first; at equal times, to the one that asked first."""
        assert self._times is not None
        times = self._times
        first = min(self._asking, key=lambda worker: times[self._asking[worker][1] - 1, self._asking[worker][0]])
        del self._asking[first]


def _set_modes(*, gradients: bool, autocast: bool) -> None:
    """Set what torch keeps for each thread: whether gradients are recorded, and whether autocast is on."""
    torch.set_grad_enabled(gradients)
    torch.set_autocast_enabled("cpu", autocast)


class TurnLock:
    """Replaces all locks of one worker: it is acquired when the worker's turn comes, once per step."""

    def __init__(self, scheduler: Scheduler, rank: int) -> None:
        self._scheduler = scheduler
        self._rank = rank
        self._granted = 0
        self.step: Callable[[], int] = lambda: 0
        """Returns the step that the worker is in."""

    def __enter__(self) -> None:
        step = self.step()
        if step > self._granted:
            self._granted = step
            self._scheduler.wait_for_turn(self._rank, step)

    def __exit__(self, *_: object) -> None: ...


class MessageBatch:
    """Collects one message from each worker of a process, sends them together, and returns the answer to all."""

    def __init__(self, size: int, send: Callable[[tuple[Message, ...]], Decision], scheduler: Scheduler) -> None:
        self._size = size
        self._send = send
        self._scheduler = scheduler
        self._messages: dict[int, Message] = {}
        self._answers = 0
        self._decision = Decision()

    def report(self, index: int, message: Message) -> Decision:
        """Add the message of the worker with this index; when all are present, send them and return the answer."""
        self._messages[index] = message
        answers = self._answers
        if len(self._messages) == self._size:
            messages = tuple(self._messages[index] for index in range(self._size))
            self._messages = {}
            self._decision = self._send(messages)
            self._answers += 1
        else:
            self._scheduler.wait_until(lambda: self._answers > answers)
        return self._decision
