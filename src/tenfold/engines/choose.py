"""Which engine trains an experiment."""

from typing import TYPE_CHECKING

from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.machine import devices

if TYPE_CHECKING:
    from tenfold.engines.base import Engine


def choose(experiment: Experiment, world: World | None = None) -> "Engine":
    """Return the engine that a valid experiment asks for, or the one that fits it; `world` is what a launcher started.

    A virtual cluster has an engine in `prediction/virtual_engine.py`, which `api/train.py` chooses before.
    """
    machine, workers = experiment.machine, experiment.division.workers
    assert machine.engine != "virtual", "only real engines are chosen here"
    if world is not None and is_launched(experiment, world):
        from tenfold.engines.launched.launched_engine import Launched

        return Launched(world, machine.transport, machine.stall_after)
    if steps_together(experiment):
        from tenfold.engines.fused.fused_engine import FusedEngine

        return FusedEngine()
    if machine.engine == "processes" or workers > 1:
        from tenfold.engines.processes import Processes

        return Processes()
    from tenfold.engines.serial import Serial

    return Serial()


def is_launched(experiment: Experiment, world: World) -> bool:
    """Return whether the workers are a launcher's ranks.

    A single rank trains as it would without a launcher, unless the engine is "launched" or it is the last rank left.
    """
    machine = experiment.machine
    survivor = world.restarts > 0 and machine.on_failure == "continue"
    return world.size > 1 or machine.engine == "launched" or survivor


def steps_together(experiment: Experiment) -> bool:
    """Return whether all replicas step together on one device: for several workers on a GPU, or if requested."""
    engine, division = experiment.machine.engine, experiment.division
    if engine == "fused" or (engine != "virtual" and division.folds is not None and division.fold_mode == "fused"):
        return True
    return engine == "auto" and division.workers > 1 and not trains_on_cpu(experiment)


def trains_on_cpu(experiment: Experiment) -> bool:
    """Return whether the experiment's device is the CPU, by name or because there is no GPU."""
    device = experiment.machine.device
    return (devices.resolve("auto").type if device == "auto" else device) == "cpu"
