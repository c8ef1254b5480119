"""Where replicas run, and who drives them."""

from tenfold.engines.base import Engine, Outcome, Resumption
from tenfold.engines.serial import Serial
from tenfold.engines.task import Task
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment

__all__ = ["Engine", "Outcome", "Resumption", "Serial", "Task", "choose"]


def choose(experiment: Experiment) -> Engine:
    """Return the engine that the experiment asks for, or the one that fits it."""
    division, machine = experiment.division, experiment.machine
    if division.folds is not None:
        raise ExperimentError(f"division.folds = {division.folds}: cross-validation is not there yet; leave it unset")
    if machine.engine not in ("auto", "serial") or division.workers > 1:
        raise ExperimentError(
            f'division.workers = {division.workers} with machine.engine = "{machine.engine}": only one worker is '
            "supported yet; set workers = 1"
        )
    return Serial()
