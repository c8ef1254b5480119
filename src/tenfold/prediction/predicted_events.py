"""The events of a virtual run, with the times that were predicted for its cluster."""

from dataclasses import replace
from typing import Any

import numpy as np

from tenfold.cluster.time_prediction import TimePrediction
from tenfold.machine.process_state import MEMORY_METRICS
from tenfold.runs import Emit, EpochEnded, Event, Lifecycle, Metric, Span, Started
from tenfold.workers.task import Task


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
            return  # that of this machine, not of the cluster
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
        share = seconds / prediction.seconds
        times = {kind: float(np.mean(each)) for kind, each in prediction.times.items()}
        return {
            "clock": "predicted",
            "seconds": seconds,
            "interval": [share * end for end in prediction.interval],
            "times": {kind: time if kind == "start" else share * time for kind, time in times.items()},
            "samples_per_second": trained["samples"] / seconds,
            **({"seconds_to_target": seconds} if last is not None else {}),
            "calibrated": prediction.calibrated,
            "machine_speed": prediction.machine_speed,
            "reasons": list(prediction.reasons),
        }

    def _training(self, step: int) -> float:
        """Return the training seconds until the end of a step."""
        return float(np.interp(step, [0, *self._steps], [0.0, *self._seconds]))

    def _at(self, step: int, epoch: int) -> float:
        """Return when a step ends, counted from the start of the run, with the startup and evaluations before it."""
        times = {kind: float(np.max(seconds)) for kind, seconds in self.prediction.times.items()}
        between = (times.get("evaluate", 0.0) + times.get("save", 0.0)) / self.task.experiment.training.epochs
        return self.origin + times.get("start", 0.0) * (step > 0) + self._training(step) + epoch * between
