"""Where replicas run, and what drives them."""

from collections.abc import Callable

from tenfold.cluster.prediction import Prediction
from tenfold.engines.base import Engine
from tenfold.engines.outcome import Outcome, RecordedRun
from tenfold.engines.validate import is_launched, require_no_launcher, validate
from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task

__all__ = ["Engine", "Outcome", "RecordedRun", "Resumption", "Task", "choose", "require_no_launcher", "validate"]

Predict = Callable[[Task], Prediction]
"""Predicts how long a task takes on its virtual cluster."""


def choose(experiment: Experiment, world: World | None = None, predict: Predict | None = None) -> Engine:
    """Return the engine that a valid experiment asks for, or the one that fits it.

    `world` is what a launcher started, None without one. A virtual engine calls `predict` before it trains.
    """
    machine, workers = experiment.machine, experiment.division.workers
    if machine.engine == "virtual":
        from tenfold.engines.virtual import Virtual

        assert predict is not None, "a virtual engine needs predicted times"
        return Virtual(predict)
    if world is not None and is_launched(experiment, world):
        from tenfold.engines.launched.launched_engine import Launched

        return Launched(world, machine.transport)
    if machine.engine == "processes" or workers > 1:
        from tenfold.engines.processes import Processes

        return Processes()
    from tenfold.engines.serial import Serial

    return Serial()
