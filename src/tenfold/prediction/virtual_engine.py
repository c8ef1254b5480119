"""A virtual cluster: this machine trains the replicas, and the recorded times are predictions for the cluster.

It uses the workers of the process engine, several per process, so the weights are bit-identical to that engine's. On a
GPU, all replicas step together and the weights are equal up to rounding.

It is not in `engines/` because it needs predictions, which are measured with the other engines.
"""

from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.cluster.cluster import cluster_of
from tenfold.cluster.time_prediction import TimePrediction
from tenfold.engines.base import Outcome
from tenfold.engines.one_device import cannot_step_together, train_replicas
from tenfold.engines.prepare import Notify, trains_on_cpu, why_not_among_ranks
from tenfold.engines.processes import Processes
from tenfold.errors import ExperimentError, MachineError
from tenfold.experiment import Experiment
from tenfold.experiment.section_fields import MICRO_BATCHES_PER_STAGE
from tenfold.launchers import World
from tenfold.machine import cores
from tenfold.machine.cores import format_bytes
from tenfold.machine.liveness import MEMORY_METRICS
from tenfold.mixing.round import bound
from tenfold.prediction.calibration import silent
from tenfold.prediction.probes import ReportProgress
from tenfold.prediction.task_prediction import predict_task
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Emit, EpochEnded, Event, Lifecycle, Metric, Note, Span, Started, Stopwatch
from tenfold.training.optimizers import count_state_vectors
from tenfold.training.stack import free_memory as left_on_gpu
from tenfold.workers.task import Resolved, Task, make_network


class Virtual(Processes):
    """Trains all replicas on this machine's cores, with the predicted times of a cluster."""

    name = "virtual"
    trains_folds = False  # folds are trained on this machine, and their times are predicted
    predictable = False
    can_continue = False  # a process that dies on this machine is not a lost node of the cluster

    @classmethod
    def supports(cls, experiment: Experiment, world: World | None) -> str | None:
        if (reason := why_not_among_ranks(cls.name, world)) is not None:
            return reason
        try:
            cluster_of(experiment)
        except ExperimentError as error:
            return str(error)
        return None if trains_on_cpu(experiment) else cannot_step_together(experiment)

    @classmethod
    def is_usual(cls, _experiment: Experiment, _world: World | None) -> bool:
        """Return False: a simulation runs only on request."""
        return False

    @classmethod
    def create(cls, _resolved: Resolved, notify: Notify) -> Self:
        """Return the engine, which reports the measurements that it needs before it can predict."""
        return cls(notify)

    def __init__(self, report: ReportProgress = silent) -> None:
        """Call `report` with a line about each measurement that a prediction needs."""
        self._report = report
        self._prediction: TimePrediction | None = None
        self._memory = ""

    def prepare(self, resolved: Resolved) -> Task:
        """Load the data, check that all replicas fit into memory, and predict the times of the run."""
        task = super().prepare(resolved)
        self._memory = check_memory(task)
        self._prediction = predict_task(task, self._report)
        return task

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        assert self._prediction is not None, "prepare comes first"
        emit(Note(at=stopwatch.now(), text=self._memory))
        began = stopwatch.now()
        predicted = PredictedEvents(task, self._prediction, began, emit)
        if task.device.type == "cpu":
            outcome = super().run(task, stopwatch, predicted, resumption)
        else:
            outcome = train_replicas(task, stopwatch, predicted, resumption)
        outcome.result.update(predicted.result(outcome.result), simulated_in=stopwatch.now() - began)
        return outcome

    def _ranks_by_process(self, task: Task) -> list[range]:
        """Divide the workers among processes; workers with a fixed order of exchanges share one process."""
        most = 1 if self._exchange_times() is not None else max(1, cores.budget() // task.threads)
        if task.division is not None and task.division.kind == "neurons":
            most = task.workers  # workers wait for each other inside autograd, so each needs its own process
        parts = np.array_split(np.arange(task.workers), min(most, task.workers))
        return [range(int(part[0]), int(part[-1]) + 1) for part in parts]

    def _exchange_times(self) -> NDArray[Any] | None:
        return self._prediction.exchange_times if self._prediction is not None else None


class PredictedEvents:
    """Replaces the measured times of events by predicted ones, and passes the events on."""

    def __init__(self, task: Task, prediction: TimePrediction, origin: float, emit: Emit) -> None:
        self.task = task
        self.origin = origin
        self.prediction = prediction
        self.emit = emit
        self._steps = sorted(prediction.marks)
        self._seconds = [prediction.marks[step] for step in self._steps]

    def __call__(self, event: Event) -> None:
        """Pass an event on with its time on the virtual cluster.

        Measured spans are dropped, because the prediction has its own.
        """
        if isinstance(event, Metric) and event.name in MEMORY_METRICS:
            return  # it describes this machine, not the cluster
        if isinstance(event, Metric):
            self.emit(replace(event, at=self._at(event.step, event.epoch), seconds=self._training(event.step)))
        elif isinstance(event, Lifecycle):
            last = (event.epoch + 1) * self.task.steps_per_epoch if isinstance(event, EpochEnded) else 0
            self.emit(replace(event, at=self._at(last, event.epoch)))
            if isinstance(event, Started) and not event.resumed:
                for span in self.prediction.spans:
                    self.emit(
                        Span(at=self.origin + span.start, kind=span.kind, seconds=span.seconds, worker=span.worker)
                    )

    def result(self, trained: dict[str, Any]) -> dict[str, Any]:
        """Return the predicted times of a run, given its result; it may have stopped before its last epoch."""
        prediction, last = self.prediction, trained.get("steps_to_target")
        steps = trained["epochs"] * self.task.steps_per_epoch if last is None else last
        if trained.get("stopped_by"):
            steps = min(steps, trained["steps"])
        whole = steps >= self.task.experiment.training.epochs * self.task.steps_per_epoch
        seconds = prediction.seconds if whole else self._training(steps)
        reached = {"seconds_to_target": seconds} if last is not None else {}
        return prediction.result(trained["samples"], seconds) | reached

    def _training(self, step: int) -> float:
        return float(np.interp(step, [0, *self._steps], [0.0, *self._seconds]))

    def _at(self, step: int, epoch: int) -> float:
        """Return when a step ends, counted from the start of the run, with the startup and evaluations before it."""
        times = {kind: float(np.max(seconds)) for kind, seconds in self.prediction.times.items()}
        between = (times.get("evaluate", 0.0) + times.get("save", 0.0)) / self.task.experiment.training.epochs
        return self.origin + times.get("start", 0.0) * (step > 0) + self._training(step) + epoch * between


def check_memory(task: Task) -> str:
    """Return a sentence about the memory that the replicas need; raise MachineError if there is not enough."""
    needed = replica_bytes(task) * task.replicas
    free = free_memory(task.device)
    if needed > free:
        raise MachineError(
            f"{task.replicas} replicas need about {format_bytes(needed)} of memory, but {format_bytes(free)} are free; "
            "use fewer workers or a smaller model, or predict only the time"
        )
    return f"{task.replicas} replicas need about {format_bytes(needed)} of memory; {format_bytes(free)} are free"


def replica_bytes(task: Task) -> int:
    """Return the bytes of a replica: weights, gradients, a copy, the optimizer's state, and the buffer of a round."""
    training = task.experiment.training
    vectors = training.optimizer_traits.state_vectors
    vectors = count_state_vectors(training, make_network(task)) if vectors is None else vectors
    return task.metadata.nbytes * (3 + vectors + task.parallel.needs_gradient_buffer)


def describe_division(task: Task, workers: int) -> str:
    """Return whether it would pay to divide the model of a task among workers, in a sentence with numbers."""
    needed, free = replica_bytes(task), free_memory(task.device)
    if needed * workers > free:
        return (
            f"a replica needs about {format_bytes(needed)} of memory, too much for {workers} workers that share "
            f'{format_bytes(free)}: divide the model with parallel.divide = "layers" or "neurons"'
        )
    return (
        f"dividing the model would not pay: a replica needs about {format_bytes(needed)} of memory, and "
        f"{format_bytes(free)} are free; a pipeline of {workers} equal stages is at most "
        f"{bound([1.0] * workers, MICRO_BATCHES_PER_STAGE * workers):.2f}x as fast as one worker"
    )


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device's memory; in a container, of what the container may use."""
    if device.type == "cuda":
        return int(left_on_gpu(device))
    return cores.free_memory()
