"""Which engine trains an experiment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenfold.common.catalog import NETWORK_TRANSPORTS
from tenfold.common.optimizer_traits import OPTIMIZER_TRAITS
from tenfold.errors import ExperimentError
from tenfold.experiment import Division, Experiment
from tenfold.experiment.fields import with_defaults
from tenfold.launch.detect import World
from tenfold.machine import devices
from tenfold.mixing import Strategy
from tenfold.mixing.builders import make_compressor, make_outer, make_strategy
from tenfold.training.optimizers import try_options

if TYPE_CHECKING:
    from tenfold.engines.base import Engine


def choose(experiment: Experiment, world: World | None = None) -> "Engine":
    """Return the engine that a valid experiment asks for, or the one that fits it; `world` is what a launcher started.

    A virtual cluster has an engine in `prediction/virtual_engine.py`, which `api/train.py` chooses before.
    """
    machine, workers = experiment.machine, experiment.division.workers
    assert machine.engine != "virtual", "only real engines are chosen here"
    if world is not None and is_launched(experiment, world):
        from tenfold.engines.launched import Launched

        return Launched(world, machine.transport, machine.stall_after)
    if steps_together(experiment):
        from tenfold.engines.one_device import FusedEngine

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


# Whether an experiment can run here: settings that contradict each other, or the launcher that started this program.
#
# A single value is checked when the experiment is made (`tenfold.experiment`); what needs the data or this machine's
# cores and memory is checked by `prepare`, before a run is recorded.

EXACT = "allreduce or parameter-server"


def validate(experiment: Experiment, world: World | None) -> None:
    """Raise ExperimentError where an experiment cannot be trained; `world` is what a launcher started, if one did."""
    division = experiment.division
    if division.folds is not None:
        raise ExperimentError(
            f"division.folds = {division.folds}: training makes one model; use `tenfold crossval` or "
            "tenfold.cross_validate to train one for each fold"
        )
    if experiment.machine.engine == "virtual":
        require_no_launcher('machine.engine = "virtual"', world)
        from tenfold.cluster.cluster import cluster_of

        cluster_of(experiment)
        if not trains_on_cpu(experiment):
            validate_fused(experiment)
    elif world is not None and is_launched(experiment, world):
        _validate_ranks(experiment, world)
        experiment = experiment.replace(workers=world.size)
    else:
        _validate_one_machine(experiment)
    validate_mixing(experiment)
    training = experiment.training
    if training.optimizer_options or training.nesterov or training.needs_closure:
        try_options(training)


def require_no_launcher(what: str, world: World | None) -> None:
    """Raise ExperimentError under a launcher, for what starts its own workers and would do so in every rank."""
    if world is not None and world.size > 1:
        raise ExperimentError(
            f"{what} starts its own workers, but {world.launcher} has started {world.size} ranks; "
            f"start it without {world.launcher}"
        )


def validate_mixing(experiment: Experiment) -> None:
    """Raise ExperimentError for a strategy, outer optimizer, compression and optimizer that do not work together."""
    experiment = with_defaults(experiment)
    division, n = experiment.division, experiment.division.workers
    strategy = make_strategy(division)
    may_shrink = experiment.machine.on_failure == "continue" and experiment.machine.engine != "virtual"
    make_outer(division)
    _validate_exactness(division, strategy, range(n, 0, -1) if may_shrink else [n])
    if may_shrink and n > 1:
        _validate_shrinking(division, strategy)
    if division.average == "gradients":
        _validate_gradients(experiment)
    if division.optimizer_state == "average" and experiment.training.needs_closure:
        raise ExperimentError(
            f'training.optimizer = "{experiment.training.optimizer}" has no state to average; '
            'set division.optimizer_state = "local"'
        )
    if experiment.training.precision == "fp16":
        _validate_fp16(experiment, asynchronous=strategy.asynchronous)
    if strategy.asynchronous:
        _validate_asynchronous(experiment)
    if division.overlap:
        _validate_overlap(experiment, strategy)


def _validate_exactness(division: Division, strategy: Strategy, counts: Sequence[int]) -> None:
    """Raise ExperimentError for what needs identical replicas after each round, with any of these numbers of them."""
    choices = {
        "outer": division.outer != "none",
        "compression": make_compressor(division, 1).error_feedback,
        "average": division.average == "gradients",
    }
    inexact = next((count for count in counts if not _exact(strategy, count)), None)
    for field, chosen in choices.items():
        if chosen and inexact is not None:
            left = f" with the {inexact} workers that may be left" if inexact != division.workers else ""
            raise ExperimentError(
                f'division.{field} = "{getattr(division, field)}" requires identical replicas after each round, '
                f'which "{division.strategy}" does not guarantee{left}; use {EXACT}'
            )


def _validate_asynchronous(experiment: Experiment) -> None:
    """Raise ExperimentError for what needs rounds, which asynchronous strategies do not have."""
    training, division = experiment.training, experiment.division
    if training.ema is not None:
        raise ExperimentError(
            f'training.ema needs a strategy with rounds, and division.strategy = "{division.strategy}" has none; '
            "use one such as butterfly, or leave it unset"
        )
    if training.evaluate_every < 1:
        raise ExperimentError(
            f'training.evaluate_every must be 1 with division.strategy = "{division.strategy}", '
            "whose workers wait for each other only after an epoch"
        )
    for field, plain in (("compression", "none"), ("optimizer_state", "local")):
        if getattr(division, field) != plain:
            raise ExperimentError(f'division.strategy = "{division.strategy}" requires division.{field} = "{plain}"')
    if training.needs_closure:
        raise ExperimentError(
            f'training.optimizer = "{training.optimizer}" cannot be used with "{division.strategy}"; use sgd'
        )


def _validate_overlap(experiment: Experiment, strategy: Strategy) -> None:
    """Raise ExperimentError for what cannot wait for the end of the next step."""
    division = experiment.division
    if strategy.asynchronous:
        raise ExperimentError(
            f'division.overlap = true requires a strategy with rounds, and division.strategy = "{division.strategy}" '
            "has none; use one such as butterfly, or leave overlap unset"
        )
    allowed = {
        "average": ("weights",),
        "outer": ("none",),
        "compression": ("none",),
        "optimizer_state": ("local", "average"),
    }
    for field, values in allowed.items():
        if getattr(division, field) not in values:
            expected = " or ".join(f'"{value}"' for value in values)
            raise ExperimentError(
                f'division.overlap = true requires division.{field} = {expected}, not "{getattr(division, field)}"'
            )
    if division.optimizer_state == "average" and not experiment.training.optimizer_traits.state_may_overlap:
        able = [name for name, traits in OPTIMIZER_TRAITS.items() if traits.state_may_overlap]
        raise ExperimentError(
            f"division.overlap = true averages the momenta of {' and '.join(able)} only; set division.optimizer_state "
            f'to "local" for training.optimizer = "{experiment.training.optimizer}"'
        )
    if experiment.machine.on_failure == "continue":
        raise ExperimentError(
            'division.overlap = true requires machine.on_failure = "end": what a lost worker has published cannot be '
            "averaged"
        )


def _validate_fp16(experiment: Experiment, *, asynchronous: bool) -> None:
    """Raise ExperimentError where steps cannot be skipped when their gradients overflow."""
    if trains_on_cpu(experiment):
        raise ExperimentError(
            'training.precision = "fp16" is for GPUs; on a CPU use "bf16", which needs no loss scaling'
        )
    skipping = 'training.precision = "fp16" skips steps whose gradients overflow, which'
    if experiment.training.needs_closure:
        raise ExperimentError(f'{skipping} {experiment.training.optimizer} cannot do; use "bf16"')
    if asynchronous or (experiment.division.workers > 1 and experiment.division.average == "gradients"):
        raise ExperimentError(
            f'{skipping} a worker cannot do alone while gradients are exchanged; use "bf16", or division.average = '
            '"weights" with a strategy that has rounds'
        )


def validate_fused(experiment: Experiment) -> None:
    """Raise ExperimentError for what replicas that step together on one device cannot do."""
    training, division = experiment.training, experiment.division
    if training.precision == "fp16":
        raise ExperimentError('training.precision = "fp16" is not supported for replicas on one device; use "bf16"')
    if training.ema is not None:
        raise ExperimentError(
            f"training.ema = {training.ema:g} is not supported for replicas that step together on one device; leave it "
            'unset, or set division.fold_mode to "fold-by-fold"'
        )
    if training.accumulate > 1:
        raise ExperimentError(
            f"training.accumulate = {training.accumulate}: replicas on one device fit into memory already; set it "
            'to 1, or division.fold_mode to "fold-by-fold"'
        )
    if training.activation_checkpointing:
        raise ExperimentError(
            "training.activation_checkpointing is not supported for replicas that step together on one device; leave "
            'it unset, or set division.fold_mode to "fold-by-fold"'
        )
    if division.workers > 1 and make_strategy(division).asynchronous:
        raise ExperimentError(
            f'division.strategy = "{division.strategy}" has no rounds, but replicas on one device step '
            "together; use a strategy with rounds, such as allreduce"
        )


def _validate_one_machine(experiment: Experiment) -> None:
    machine, workers = experiment.machine, experiment.division.workers
    if machine.engine == "launched" or machine.transport in NETWORK_TRANSPORTS:
        field = "engine" if machine.engine == "launched" else "transport"
        raise ExperimentError(
            f'machine.{field} = "{getattr(machine, field)}" requires a launcher; start the program with torchrun, '
            "mpirun or srun, or use auto"
        )
    if machine.engine == "serial" and workers > 1:
        raise ExperimentError(
            f'machine.engine = "serial" runs one worker, but division.workers = {workers}; use auto or processes'
        )
    if steps_together(experiment):
        validate_fused(experiment)
    elif workers > 1 and not trains_on_cpu(experiment):
        raise ExperimentError(
            f'machine.engine = "{machine.engine}" runs several workers on CPU only, but machine.device = '
            f'"{machine.device}"; use auto, with which all step together on one GPU, or start one rank per GPU with '
            "torchrun"
        )


def _validate_ranks(experiment: Experiment, world: World) -> None:
    """Raise ExperimentError for what the ranks of this launcher cannot do."""
    workers, machine = experiment.division.workers, experiment.machine
    continues = machine.on_failure == "continue"
    if continues and world.launcher != "torchrun" and world.size > 1:
        raise ExperimentError(
            'machine.on_failure = "continue" requires torchrun, which restarts the remaining ranks; '
            f'{world.launcher} does not: set it to "end"'
        )
    if continues and experiment.division.shards == "fractions":
        raise ExperimentError(
            'machine.on_failure = "continue" divides the data again among the remaining ranks, but division.shards = '
            f'"fractions" sets the share of each of {workers}; use iid, or set machine.on_failure = "end"'
        )
    if workers not in (1, world.size) and not (continues and world.restarts):
        raise ExperimentError(
            f"division.workers = {workers} in the experiment, but {world.launcher} has started {world.size} ranks, "
            f"each of which is a worker; start {workers} ranks, or leave workers unset"
        )
    if machine.engine in ("serial", "processes"):
        raise ExperimentError(
            f'machine.engine = "{machine.engine}" starts its own workers, but {world.launcher} has started '
            f"{world.size} ranks; use auto, or start the program without {world.launcher}"
        )
    if make_strategy(experiment.division).asynchronous:
        raise ExperimentError(
            f'division.strategy = "{experiment.division.strategy}" needs memory that all workers share, which ranks '
            f"do not have; start it without {world.launcher}, or use a strategy with rounds such as butterfly"
        )
    if experiment.division.overlap and world.size > 1:
        raise ExperimentError(
            "division.overlap = true needs memory that all workers share, which ranks do not have; start it without "
            f"{world.launcher}, or leave overlap unset"
        )


def _exact(strategy: Strategy, n: int) -> bool:
    """Return whether n replicas are identical after every round."""
    return strategy.period(n) == 1 and strategy.round(0, n).is_exact


def _validate_gradients(experiment: Experiment) -> None:
    division = experiment.division
    for field, plain in (("outer", "none"), ("optimizer_state", "local")):
        if getattr(division, field) != plain:
            raise ExperimentError(
                f'division.average = "gradients" averages before every step and requires division.{field} = "{plain}"'
            )
    if experiment.training.needs_closure:
        raise ExperimentError(
            f'training.optimizer = "{experiment.training.optimizer}" evaluates several gradients a step, which cannot '
            'be averaged; set division.average = "weights"'
        )


def _validate_shrinking(division: Division, strategy: Strategy) -> None:
    """Raise ExperimentError for what cannot continue with fewer workers."""
    if strategy.asynchronous:
        raise ExperimentError(
            f'machine.on_failure = "continue" requires a strategy with rounds, and division.strategy = '
            f'"{division.strategy}" has none; use one such as butterfly, or set machine.on_failure = "end"'
        )
