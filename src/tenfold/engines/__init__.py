"""Where replicas run, and who drives them."""

from tenfold.engines.base import Engine, Outcome
from tenfold.engines.validate import check
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.launch.detect import recognise
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task

__all__ = ["Engine", "Outcome", "Resumption", "Task", "check_unlaunched", "choose"]


def choose(experiment: Experiment) -> Engine:
    """Return the engine that the experiment asks for, or the one that fits it."""
    division, machine = experiment.division, experiment.machine
    if division.folds is not None:
        raise ExperimentError(
            f"division.folds = {division.folds}: training makes one model; `tenfold crossval` or "
            "tenfold.cross_validate makes one for each fold"
        )
    if machine.engine == "virtual":
        from tenfold.engines.virtual import Virtual
        from tenfold.prediction.task_prediction import cluster_of

        check_unlaunched('machine.engine = "virtual"')
        check(experiment)
        cluster_of(experiment)
        return Virtual()
    world = recognise()
    last_one = world is not None and world.restarts > 0 and machine.on_failure == "continue"
    if world is not None and (world.size > 1 or machine.engine == "launched" or last_one):
        from tenfold.engines.launched.engine import Launched
        from tenfold.engines.launched.rank import settled

        check(settled(experiment, world))
        return Launched(world, machine.transport)
    if machine.engine == "launched" or machine.transport in ("torch", "mpi"):
        chosen = "engine" if machine.engine == "launched" else "transport"
        raise ExperimentError(
            f'machine.{chosen} = "{getattr(machine, chosen)}" is for programs that a launcher starts; start this one '
            "with torchrun, mpirun or srun, or take auto"
        )
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


def check_unlaunched(what: str) -> None:
    """Refuse what starts its workers by itself under a launcher, where every rank would do it."""
    world = recognise()
    if world is not None and world.size > 1:
        raise ExperimentError(
            f"{what} starts its workers by itself, but {world.launcher} has started {world.size} ranks; "
            f"start it without {world.launcher}"
        )
