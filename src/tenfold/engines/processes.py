"""N replicas in N processes of this machine, mixing in shared memory."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from numpy.typing import NDArray

from tenfold.engines.base import Engine, Outcome
from tenfold.engines.recovery import Loss, among, announced, told, without
from tenfold.errors import MachineError, WorkerLost
from tenfold.mixing.builders import make_strategy
from tenfold.runs import Clock, Emit
from tenfold.runs.resumption import Resumption
from tenfold.training import flat_size
from tenfold.transport import clean_up_orphans
from tenfold.transport.memory.segment import StopReason
from tenfold.workers.channels import SharedChannels
from tenfold.workers.messages import Finished, Message
from tenfold.workers.snapshot import TaskSnapshot
from tenfold.workers.supervisor import Supervisor
from tenfold.workers.task import Task, make_network
from tenfold.workers.worker_pool import WorkerPool, context, warm_up
from tenfold.workers.worker_process import work


class Processes(Engine):
    """Trains every replica in a process of its own."""

    name = "processes"
    goes_on = True
    """Whether the others can go on without one that is lost."""

    def __init__(self) -> None:
        warm_up()

    def run(self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end; when a worker is lost, the others go on if the experiment says so, else all end."""
        if task.experiment.machine.device != "cpu":
            raise MachineError(
                f'machine.device = "{task.experiment.machine.device}": several workers run on cpu only yet'
            )
        clean_up_orphans()
        lost: list[Loss] = []
        if resumption is not None:
            task, lost = among(task, len(resumption.ranks)), resumption.manifest.get("lost", [])
        while True:
            try:
                return self._train(task, clock, emit, resumption, lost)
            except WorkerLost as error:
                if not self.goes_on or task.experiment.machine.on_failure == "end" or task.workers == 1:
                    raise
                task, resumption = without(error.rank, task, resumption)
                loss = told(error, task.workers, resumption)
                lost = [*lost, loss]
                emit(announced(loss, clock))

    def _train(
        self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None, lost: Sequence[Loss]
    ) -> Outcome:
        """Train to the end with one crew; when one worker is lost, all end and the loss is named."""
        manifest = resumption.manifest if resumption else {}
        supervisor = Supervisor(task, clock, emit, manifest | {"lost": lost})
        with closing(_links(task)) as links, closing(TaskSnapshot(task)) as parcel:
            crews = self._crews(task)
            crew = WorkerPool(len(crews), work, (parcel, links, clock, resumption, crews, self._times(task)))
            try:
                supervisor.start(resumed=resumption is not None)
                self._supervise(crew, crews, supervisor, emit)
                crew.join()
            except WorkerLost as error:
                links.stop(StopReason.DIED, error.rank)
                raise
            finally:
                crew.end()
        return Outcome(supervisor.result, supervisor.weights, supervisor.outputs)

    def _crews(self, task: Task) -> list[range]:
        """Return the ranks in each process."""
        return [range(rank, rank + 1) for rank in range(task.workers)]

    def _times(self, task: Task) -> NDArray[Any] | None:  # noqa: ARG002 - for those who decide who comes first
        """Return when each worker's steps end, where that is not left to the machine."""
        return None

    def _supervise(self, crew: WorkerPool, crews: Sequence[range], supervisor: Supervisor, emit: Emit) -> None:
        """Pass events on, and answer the workers whenever all have said the same kind of thing."""
        heard: dict[int, tuple[Message, ...]] = {}
        for place, content in _messages(crew, crews):
            if isinstance(content, list):
                for event in content:
                    emit(event)
            elif isinstance(content, BaseException):
                raise _of_workers(crews[place], content)
            else:
                heard[place] = content
            if len(heard) == len(crew.processes):
                messages = [message for place in sorted(heard) for message in heard[place]]
                verdict = supervisor.hear(messages)
                for place in heard:
                    crew.send(place, verdict)
                heard = {}
                if isinstance(messages[0], Finished):
                    return


def _links(task: Task) -> SharedChannels:
    division = task.experiment.division
    numel = flat_size(make_network(task))
    locks = [context().Lock() for _ in range(task.workers + 1)]
    second, centre = division.needs_second_buffer, make_strategy(division).has_centre
    return SharedChannels(task.workers, numel, locks, second=second, centre=centre)


def _messages(crew: WorkerPool, crews: Sequence[range]) -> Iterator[tuple[int, Any]]:
    """Yield what processes say; when one is lost, name the workers in it."""
    try:
        yield from crew.messages()
    except WorkerLost as error:
        ranks, what = crews[error.rank], str(error).removeprefix(f"worker {error.rank}")
        raise WorkerLost(ranks[0], f"{_named(ranks)}{what}") from None


def _of_workers(ranks: range, error: BaseException) -> BaseException:
    """Return an error of a process with the ranks of the workers in it."""
    if isinstance(error, RuntimeError):
        return RuntimeError(f"{_named(ranks)} failed:\n{error}")
    error.args = (f"{_named(ranks)}: {error}",) if not str(error).startswith("worker") else error.args
    return error


def _named(ranks: range) -> str:
    return f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {ranks[0]} to {ranks[-1]}"
