"""N replicas in N processes of this machine, mixing in shared memory."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from numpy.typing import NDArray

from tenfold.engines.base import Engine
from tenfold.engines.recording import Outcome
from tenfold.engines.recovery import divide_among, shrink
from tenfold.errors import WorkerLost, name_workers
from tenfold.mixing.builders import make_strategy
from tenfold.runs import Clock, Emit, Warned
from tenfold.runs.resumption import Resumption
from tenfold.training import flat_size
from tenfold.transport import clean_up_orphans
from tenfold.transport.memory.segment import StopReason
from tenfold.workers.channels import SharedChannels
from tenfold.workers.messages import Finished, Message
from tenfold.workers.pool.snapshot import TaskSnapshot
from tenfold.workers.pool.worker_pool import WorkerPool, start_server
from tenfold.workers.pool.worker_process import run_workers
from tenfold.workers.supervisor import Supervisor
from tenfold.workers.task import Task, make_network
from tenfold.workers.worker_loss import WorkerLoss, losses_in


class Processes(Engine):
    """Trains every replica in a separate process."""

    name = "processes"
    can_continue = True
    """Whether the other workers can continue when one is lost."""

    def __init__(self) -> None:
        start_server()

    def run(self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end; when a worker is lost, the others continue if the experiment says so, else all end."""
        clean_up_orphans()
        losses: list[WorkerLoss] = []
        if resumption is not None:
            task, losses = divide_among(task, len(resumption.ranks)), losses_in(resumption.manifest)
        while True:
            try:
                return self._train(task, clock, emit, resumption, losses)
            except WorkerLost as error:
                if not self.can_continue or task.experiment.machine.on_failure == "end" or task.workers == 1:
                    raise
                task, resumption = shrink(task, error.rank, resumption)
                losses = [*losses, WorkerLoss.of(error, task.workers, resumption)]
                emit(losses[-1].event(clock))

    def _train(
        self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None, losses: Sequence[WorkerLoss]
    ) -> Outcome:
        """Train to the end with one set of processes; when one worker is lost, end all and raise WorkerLost."""
        supervisor = Supervisor(task, clock, emit, resumption.manifest if resumption else None, losses)
        with closing(_make_channels(task)) as channels, closing(TaskSnapshot(task)) as snapshot:
            ranks = self._ranks_by_process(task)
            arguments = (snapshot, channels, clock, resumption, ranks, self._exchange_times())
            stall_after = task.experiment.machine.stall_after
            pool = WorkerPool(len(ranks), run_workers, arguments, ranks=ranks, stall_after=stall_after)
            try:
                supervisor.start(resumed=resumption is not None)
                self._supervise(pool, supervisor, emit)
                pool.join()
            except WorkerLost as error:
                channels.stop(StopReason.DIED, error.rank)
                raise
            finally:
                pool.end()
        return Outcome(supervisor.result, supervisor.weights, supervisor.outputs, supervisor.predictions)

    def _ranks_by_process(self, task: Task) -> list[range]:
        """Return the ranks of the workers in each process."""
        return [range(rank, rank + 1) for rank in range(task.workers)]

    def _exchange_times(self) -> NDArray[Any] | None:
        """Return when each worker's steps end [steps, workers], where that is predicted and not left to the machine."""
        return None

    def _supervise(self, pool: WorkerPool, supervisor: Supervisor, emit: Emit) -> None:
        """Pass events on, and answer the workers whenever all have sent the same kind of message."""
        heard: dict[int, tuple[Message, ...]] = {}
        warned: set[str] = set()
        for place, content in pool.messages():
            if isinstance(content, list):
                for event in content:
                    if isinstance(event, Warned):  # of all workers that say the same, one is enough
                        if event.text in warned:
                            continue
                        warned.add(event.text)
                    emit(event)
            elif isinstance(content, BaseException):
                raise _named(content, pool.ranks[place])
            else:
                heard[place] = content
            if len(heard) == len(pool.processes):
                messages = [message for place in sorted(heard) for message in heard[place]]
                decision = supervisor.hear(messages)
                for place in heard:
                    pool.send(place, decision)
                heard = {}
                if isinstance(messages[0], Finished):
                    return


def _make_channels(task: Task) -> SharedChannels:
    division = task.experiment.division
    numel = flat_size(make_network(task))
    second, centre = division.needs_second_buffer, make_strategy(division).has_centre
    return SharedChannels(task.workers, numel, second=second, centre=centre)


def _named(error: BaseException, ranks: range) -> BaseException:
    """Return the error of a process with the names of its workers; one that says who was lost names the worker."""
    if isinstance(error, WorkerLost):
        return error
    if isinstance(error, RuntimeError):
        return RuntimeError(f"{name_workers(ranks)} failed:\n{error}")
    error.args = (f"{name_workers(ranks)}: {error}",)
    return error
