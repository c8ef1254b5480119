"""N replicas in N processes of this machine, mixing in shared memory."""

from contextlib import closing

from tenfold.engines.base import Engine, Outcome, Resumption, make_network
from tenfold.engines.division import make_strategy
from tenfold.engines.links import SharedLinks
from tenfold.engines.messages import Finished, Message
from tenfold.engines.parcel import Parcel
from tenfold.engines.process import work
from tenfold.engines.supervisor import Supervisor
from tenfold.engines.task import Task
from tenfold.errors import MachineError, WorkerLost
from tenfold.machine.crew import Crew, context, warm_up
from tenfold.runs import Clock, Emit
from tenfold.training import flat_size
from tenfold.transport import clean_up_orphans
from tenfold.transport.segment import Verdict as Stop


class Processes(Engine):
    """Trains every replica in a process of its own."""

    name = "processes"

    def __init__(self) -> None:
        warm_up()

    def run(self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end; when one worker is lost, all end and the loss is named."""
        if task.experiment.machine.device != "cpu":
            raise MachineError(
                f'machine.device = "{task.experiment.machine.device}": several workers run on cpu only yet'
            )
        clean_up_orphans()
        supervisor = Supervisor(task, clock, emit, resumption.manifest if resumption else None)
        with closing(_links(task)) as links, closing(Parcel(task)) as parcel:
            crew = Crew(task.workers, work, (parcel, links, clock, resumption))
            try:
                supervisor.start("resumed" if resumption else "started")
                self._supervise(crew, supervisor, emit)
                crew.join()
            except WorkerLost as lost:
                links.stop(Stop.DIED, lost.rank)
                raise
            finally:
                crew.end()
        return Outcome(supervisor.result, supervisor.weights)

    def _supervise(self, crew: Crew, supervisor: Supervisor, emit: Emit) -> None:
        """Pass events on, and answer the workers whenever all have said the same kind of thing."""
        heard: dict[int, Message] = {}
        for rank, content in crew.messages():
            if isinstance(content, list):
                for event in content:
                    emit(event)
            elif isinstance(content, BaseException):
                raise _of_worker(rank, content)
            else:
                heard[rank] = content
            if len(heard) == len(crew.processes):
                messages = [heard[rank] for rank in sorted(heard)]
                heard = {}
                verdict = supervisor.hear(messages)
                for rank in range(len(messages)):
                    crew.send(rank, verdict)
                if isinstance(messages[0], Finished):
                    return


def _links(task: Task) -> SharedLinks:
    division = task.experiment.division
    numel = flat_size(make_network(task))
    locks = [context().Lock() for _ in range(task.workers + 1)]
    second = division.average == "gradients" or division.optimizer_state == "average"
    return SharedLinks(task.workers, numel, locks, second=second, centre=make_strategy(division).has_centre)


def _of_worker(rank: int, error: BaseException) -> BaseException:
    """Return a worker's error with the worker's rank in it."""
    if isinstance(error, RuntimeError):
        return RuntimeError(f"worker {rank} failed:\n{error}")
    error.args = (f"worker {rank}: {error}",) if not str(error).startswith("worker") else error.args
    return error
