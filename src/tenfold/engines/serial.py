"""One replica in this process, trained by the same worker as any other."""

import torch

from tenfold.engines.base import Engine
from tenfold.engines.choose import is_launched, require_launcher_for_transport, require_no_ranks
from tenfold.engines.recording import Outcome
from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.machine import cores, devices
from tenfold.machine.cores import pinned
from tenfold.machine.liveness import WorkerProgress, keeping_freed_memory
from tenfold.mixing.builders import make_strategy
from tenfold.runs import Emit, Stopwatch, Warned
from tenfold.runs.checkpoint import Resumption
from tenfold.training import flat_size
from tenfold.training.randomness import training_rng
from tenfold.training.replica import set_matmul_precision
from tenfold.workers.channels import single_worker_channels
from tenfold.workers.coordinator import Coordinator
from tenfold.workers.task import Decision, Message, Task, make_network
from tenfold.workers.worker import Worker


class Serial(Engine):
    """Trains one replica in this process."""

    name = "serial"

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
        self._progress = progress or WorkerProgress()

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end."""
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
        device = devices.resolve(task.experiment.machine.device)
        network = make_network(task).to(device)
        coordinator = Coordinator(task, stopwatch, emit, resumption.manifest if resumption else None)
        channels = single_worker_channels(flat_size(network), device, make_strategy(task.experiment.parallel))

        def report(message: Message) -> Decision:
            with self._progress.allow_more_time():
                return coordinator.decide([message])

        worker = Worker(task, network, channels, stopwatch, emit, report, self._progress)
        if resumption is not None:
            worker.resume(resumption.state(0))
        coordinator.start(resumed=resumption is not None)
        worker.train()
        return Outcome.of(coordinator)
