"""A virtual cluster: the replicas learn here, on as many processes as there are cores, and a clock tells the time.

The workers are those of the process engine, several to a process, so the weights are the same bit for bit; on a GPU all
replicas step together, and the weights are the same up to rounding. When things happen is not measured but predicted:
it follows from the cluster, whose steps and links are known.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from tenfold.cluster.prediction import Prediction
from tenfold.engines.base import Outcome
from tenfold.engines.fused import train_nodes
from tenfold.engines.processes import Processes
from tenfold.errors import MachineError
from tenfold.machine import cgroups, cores, devices
from tenfold.prediction.task_prediction import Foresight, foresee
from tenfold.runs import Clock, Emit, EpochEnded, Event, Lifecycle, Metric, Note, Span, Started
from tenfold.runs.resumption import Resumption
from tenfold.training.fused.device_memory import free_memory as left_on_gpu
from tenfold.workers.task import Task, weight_bytes

STATES = {"sgd": 1, "adam": 2, "adamw": 2, "rmsprop": 1, "adagrad": 1, "lbfgs": 200, "muon": 2}
"""Vectors as long as the weights that an optimizer keeps."""


class Virtual(Processes):
    """Trains all replicas on this machine's cores, and tells the time of another."""

    name = "virtual"
    goes_on = False  # a process that dies here is no node that was lost there

    def __init__(self) -> None:
        super().__init__()
        self._foresight: Foresight | None = None

    def run(self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end; all times in events and in the result are predicted."""
        emit(Note(at=clock.now(), text=check_memory(task)))
        self._foresight = foresee(task, lambda text: emit(Note(at=clock.now(), text=text)))
        began = clock.now()
        told = Foretold(task, self._foresight.prediction, began, emit)
        if devices.resolve(task.experiment.machine.device).type == "cpu":
            outcome = super().run(task, clock, told, resumption)
        else:
            outcome = train_nodes(task, clock, told, resumption)
        outcome.result.update(told.result(outcome.result["epochs"]), simulated_in=clock.now() - began)
        return outcome

    def _crews(self, task: Task) -> list[range]:
        """Divide the workers among processes; those without rounds share one, where their order is known."""
        room = 1 if self._times(task) is not None else max(1, cores.budget() // task.threads)
        parts = np.array_split(np.arange(task.workers), min(room, task.workers))
        return [range(int(part[0]), int(part[-1]) + 1) for part in parts]

    def _times(self, task: Task) -> NDArray[Any] | None:  # noqa: ARG002
        """Return when the steps of workers without rounds end."""
        return self._foresight.turns if self._foresight is not None else None


class Foretold:
    """Puts predicted times in the place of measured ones, event by event."""

    def __init__(self, task: Task, prediction: Prediction, origin: float, emit: Emit) -> None:
        self.task = task
        self.origin = origin
        self.prediction = prediction
        self.emit = emit
        self._steps = sorted(prediction.marks)
        self._seconds = [prediction.marks[step] for step in self._steps]

    def __call__(self, event: Event) -> None:
        """Pass an event on with its time on the virtual cluster."""
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

    def result(self, epochs: int) -> dict[str, Any]:
        """Return what a result says of the time of so many epochs: all were predicted, but a run may stop early."""
        prediction = self.prediction
        whole = epochs >= self.task.experiment.training.epochs
        seconds = prediction.seconds if whole else self._training(epochs * self.task.steps_per_epoch)
        share = seconds / prediction.seconds
        times = {kind: float(np.mean(each)) for kind, each in prediction.times.items()}
        return {
            "clock": "predicted",
            "seconds": seconds,
            "interval": [share * end for end in prediction.interval],
            "times": {kind: time if kind == "start" else share * time for kind, time in times.items()},
            "samples_per_second": epochs * len(self.task.splits.train) / seconds,
            "calibrated": prediction.calibrated,
            "reasons": list(prediction.reasons),
        }

    def _training(self, step: int) -> float:
        """Return the training seconds after a step."""
        return float(np.interp(step, [0, *self._steps], [0.0, *self._seconds]))

    def _at(self, step: int, epoch: int) -> float:
        """Return when that is, after the start and the evaluations before it."""
        times = {kind: float(np.max(seconds)) for kind, seconds in self.prediction.times.items()}
        between = (times.get("evaluate", 0.0) + times.get("save", 0.0)) / self.task.experiment.training.epochs
        return self.origin + times.get("start", 0.0) * (step > 0) + self._training(step) + epoch * between


def check_memory(task: Task) -> str:
    """Say how much memory the replicas need; refuse more than there is."""
    training, division = task.experiment.training, task.experiment.division
    # weights, gradients, what an evaluation keeps aside, and what optimizers and rounds add
    vectors = 3 + STATES[training.optimizer] + division.needs_second_buffer
    needed = weight_bytes(task) * vectors * task.workers
    free = free_memory(devices.resolve(task.experiment.machine.device))
    if needed > free:
        raise MachineError(
            f"{task.workers} replicas need about {_size(needed)} of memory, but {_size(free)} are free; "
            "take fewer workers, a smaller model, or ask for the time alone"
        )
    return f"{task.workers} replicas need about {_size(needed)} of memory; {_size(free)} are free"


def free_memory(device: torch.device) -> int:
    """Return the bytes that nobody uses where replicas learn; of the machine's, a container may have a part only."""
    if device.type == "cuda":
        return int(left_on_gpu(device))
    available = int(psutil.virtual_memory().available)
    left = cgroups.memory_left()
    return available if left is None else min(available, left)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{max(1, round(nbytes / 1e6))} MB"
