"""Where replicas run, and who drives them."""

from tenfold.engines.base import Engine, Outcome, Resumption
from tenfold.engines.division import check
from tenfold.engines.task import Task
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment

__all__ = ["Engine", "Outcome", "Resumption", "Task", "choose"]


def choose(experiment: Experiment) -> Engine:
    """Return the engine that the experiment asks for, or the one that fits it."""
    division, machine = experiment.division, experiment.machine
    if division.folds is not None:
        raise ExperimentError(f"division.folds = {division.folds}: cross-validation is not there yet; leave it unset")
    if machine.engine in ("launched", "virtual"):
        raise ExperimentError(f'machine.engine = "{machine.engine}" is not there yet; take auto, serial or processes')
    if machine.transport not in ("auto", "shared-memory"):
        raise ExperimentError(f'machine.transport = "{machine.transport}" is not there yet; take auto or shared-memory')
    if machine.engine == "serial" and division.workers > 1:
        raise ExperimentError(
            f'machine.engine = "serial" runs one worker, but division.workers = {division.workers}; '
            "take auto or processes"
        )
    check(experiment)
    if machine.engine == "processes" or division.workers > 1:
        from tenfold.engines.processes import Processes

        return Processes()
    from tenfold.engines.serial import Serial

    return Serial()
