"""One replica in this process, trained by the same worker as any other."""

import torch

from tenfold.engines.base import Engine
from tenfold.engines.choose import is_launched, require_launcher_for_transport, require_no_ranks
from tenfold.engines.processes import Processes
from tenfold.engines.recording import Outcome
from tenfold.errors import ExperimentError, MachineError
from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.machine import cores
from tenfold.machine.cores import pinned
from tenfold.machine.liveness import WorkerProgress, keeping_freed_memory
from tenfold.runs import Emit, Note, Stopwatch, Warned
from tenfold.runs.checkpoint import Resumption
from tenfold.training.randomness import training_rng
from tenfold.training.replica import set_matmul_precision
from tenfold.workers.channels import single_worker_channels
from tenfold.workers.coordinator import Coordinator
from tenfold.workers.fork_server import check_may_start
from tenfold.workers.process import TaskSnapshot, check_room
from tenfold.workers.sandblaster import count_rows
from tenfold.workers.task import Decision, Message, Task
from tenfold.workers.worker import Worker

BUSY = "other programs use most of the cores, and the threads of this one would not sleep while they wait"
IN_A_PROCESS = f"{BUSY}: the worker trains in a process of its own"
SPINNING = f"{BUSY}: set {cores.WAIT_POLICY}=PASSIVE before Python starts"


class Serial(Engine):
    """Trains one replica in this process."""

    name = "serial"
    predictable = True

    @classmethod
    def supports(cls, experiment: Experiment, world: World | None) -> str | None:
        """Return why one process cannot train the experiment."""
        if (workers := experiment.parallel.workers) > 1:
            return f'machine.engine = "serial" runs one worker, but parallel.workers = {workers}; use auto or processes'
        return require_no_ranks(cls.name, world) or require_launcher_for_transport(experiment)

    @classmethod
    def is_usual(cls, experiment: Experiment, world: World | None) -> bool:
        """Return whether there is one worker, which no launcher started."""
        return experiment.parallel.workers == 1 and not is_launched(experiment, world)

    def __init__(self, progress: WorkerProgress | None = None) -> None:
        """Publish progress to `progress`, for the process that watches this one, if one does."""
        self._is_watched = progress is not None
        self._progress = progress or WorkerProgress()

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end; if this process's threads would disturb one another, in a process whose threads do not."""
        chosen = task.experiment.machine.engine == "auto" and not self._is_watched
        if chosen and task.device.type == "cpu" and task.threads > 1 and cores.waiting_threads_spin():
            if (trouble := _why_not_sent(task)) is None:
                emit(Note(at=stopwatch.now(), text=IN_A_PROCESS))
                return Processes().run(task, stopwatch, emit, resumption)
            emit(Warned(at=stopwatch.now(), text=f"{SPINNING} ({trouble})"))
        before = torch.get_num_threads()
        cores.set_threads(task.threads)
        try:
            precision = task.experiment.training.precision
            with (
                keeping_freed_memory(),
                training_rng(),
                set_matmul_precision(precision),
                pinned(task.cores.cpus(0)) as trouble,
            ):
                if trouble:
                    emit(Warned(at=stopwatch.now(), text=trouble))
                return self._run(task, stopwatch, emit, resumption)
        finally:
            torch.set_num_threads(before)

    def _run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None) -> Outcome:
        coordinator = Coordinator(task, stopwatch, emit, resumption.manifest if resumption else None)
        metadata, rows = task.metadata, count_rows(task)
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
    """Return why a process of its own cannot train the task; None if it can."""
    try:
        check_may_start()
        check_room(task.splits)
        TaskSnapshot(task).close()
    except (ExperimentError, MachineError) as error:
        return str(error)
    return None
