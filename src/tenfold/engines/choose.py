"""From an experiment as it was given to the one that is trained here: checks, defaults, and the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenfold.common.catalog import ENGINES
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment, Parallel
from tenfold.experiment.fields import with_defaults
from tenfold.experiment.values import member_of
from tenfold.launch.detect import World, detect_world
from tenfold.machine import devices
from tenfold.mixing import Strategy
from tenfold.mixing.builders import make_compressor, make_outer, make_strategy
from tenfold.training.optimizers import try_options

if TYPE_CHECKING:
    from tenfold.engines.base import Engine

Notify = Callable[[str], None]


def ignore(_text: str) -> None:
    """Do nothing with a text."""


@dataclass(frozen=True)
class Resolved:
    """An experiment as it will be trained here, made once before anything starts: checked, and nothing in it unset."""

    experiment: Experiment
    """With values for all defaults, and as many workers as a launcher has started ranks."""
    engine: "Engine"
    world: World | None = None
    """What a launcher started, if one did."""


def resolve(experiment: Experiment, notify: Notify = ignore) -> Resolved:
    """Return the experiment as it will be trained here; raise ExperimentError if it cannot be.

    `notify` is called with what an engine has to say before the training begins.
    """
    world = detect_world()
    engine = validate(experiment, world)
    if world is not None and is_launched(experiment, world):
        resolved = with_defaults(experiment.replace(workers=world.size))  # each rank has a device of its own
    else:
        resolved = resolve_defaults(experiment)
    return Resolved(resolved, engine.create(resolved, world, notify), world)


def resolve_defaults(experiment: Experiment) -> Experiment:
    """Return the experiment with values for unset fields, and a device for "auto"; `workers` must be final."""
    if experiment.machine.device == "auto":
        experiment = experiment.replace(device=str(devices.resolve("auto")))
    return with_defaults(experiment)


def choose(experiment: Experiment, world: World | None = None) -> "type[Engine]":
    """Return the engine that the experiment names, or with "auto" the first built-in one that is meant for it."""
    named = experiment.machine.engine
    if named == "auto":
        built_in = (ENGINES[name] for name in ENGINES.built_in)  # imported only up to the one that is meant
        return next(engine for engine in built_in if engine.is_usual(experiment, world))  # type: ignore[no-any-return]
    from tenfold.engines.base import Engine

    member = member_of(ENGINES, named)
    if not (isinstance(member, type) and issubclass(member, Engine)):
        raise ExperimentError(f"machine.engine should be a subclass of tenfold.engines.Engine, not {member!r}")
    return member


def is_launched(experiment: Experiment, world: World | None) -> bool:
    """Return whether the workers are a launcher's ranks.

    A single rank trains as it would without a launcher, unless the engine is "launched" or it is the last rank left.
    """
    if world is None:
        return False
    machine = experiment.machine
    survivor = world.restarts > 0 and machine.on_failure == "continue"
    return world.size > 1 or machine.engine == "launched" or survivor


def steps_together(experiment: Experiment) -> bool:
    """Return whether all replicas step together on one device: for several workers on a GPU, or if requested."""
    engine, parallel = experiment.machine.engine, experiment.parallel
    if engine == "one-device" or (
        engine != "virtual" and parallel.folds is not None and parallel.fold_mode == "stacked"
    ):
        return True
    return engine == "auto" and parallel.workers > 1 and not trains_on_cpu(experiment)


def trains_on_cpu(experiment: Experiment) -> bool:
    """Return whether the experiment's device is the CPU, by name or because there is no GPU."""
    device = experiment.machine.device
    return (devices.resolve("auto").type if device == "auto" else device) == "cpu"


# Whether an experiment can run here: settings that contradict each other, or the launcher that started this program.
#
# A single value is checked when the experiment is made (`tenfold.experiment`); what needs the data or this machine's
# cores and memory is checked by `prepare`, before a run is recorded.

EXACT = "allreduce or parameter-server"
NEEDS_LAUNCHER = "requires a launcher; start the program with torchrun, mpirun or srun, or use auto"


def validate(experiment: Experiment, world: World | None) -> "type[Engine]":
    """Return the engine that trains an experiment; raise ExperimentError where that is impossible.

    `world` is what a launcher started, if one did.
    """
    parallel = experiment.parallel
    if parallel.folds is not None:
        raise ExperimentError(
            f"parallel.folds = {parallel.folds}: training makes one model; use `tenfold crossval` or "
            "tenfold.cross_validate to train one for each fold"
        )
    engine = choose(experiment, world)
    if (reason := engine.supports(experiment, world)) is not None:
        raise ExperimentError(reason)
    if world is not None and is_launched(experiment, world):
        experiment = experiment.replace(workers=world.size)
    validate_mixing(experiment)
    training = experiment.training
    if training.optimizer_options or training.nesterov or training.needs_closure:
        try_options(training)
    return engine


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
    parallel, n = experiment.parallel, experiment.parallel.workers
    strategy = make_strategy(parallel)
    may_shrink = experiment.machine.on_failure == "continue" and experiment.machine.engine != "virtual"
    make_outer(parallel)
    _validate_exactness(parallel, strategy, range(n, 0, -1) if may_shrink else [n])
    if may_shrink and n > 1:
        _validate_shrinking(parallel, strategy)
    if parallel.average == "gradients":
        _validate_gradients(experiment)
    if parallel.optimizer_state == "average" and experiment.training.needs_closure:
        raise ExperimentError(
            f'training.optimizer = "{experiment.training.optimizer}" has no state to average; '
            'set parallel.optimizer_state = "local"'
        )
    if experiment.training.precision == "fp16":
        _validate_fp16(experiment, asynchronous=strategy.asynchronous)
    if strategy.asynchronous:
        _validate_asynchronous(experiment)


def _validate_exactness(parallel: Parallel, strategy: Strategy, counts: Sequence[int]) -> None:
    """Raise ExperimentError for what needs identical replicas after each round, with any of these numbers of them."""
    choices = {
        "outer": parallel.outer != "none",
        "compression": make_compressor(parallel, 1).error_feedback,
        "average": parallel.average == "gradients",
    }
    inexact = next((count for count in counts if not _exact(strategy, count)), None)
    for field, chosen in choices.items():
        if chosen and inexact is not None:
            left = f" with the {inexact} workers that may be left" if inexact != parallel.workers else ""
            raise ExperimentError(
                f'parallel.{field} = "{getattr(parallel, field)}" requires identical replicas after each round, '
                f'which "{parallel.strategy}" does not guarantee{left}; use {EXACT}'
            )


def _validate_asynchronous(experiment: Experiment) -> None:
    """Raise ExperimentError for what needs rounds, which asynchronous strategies do not have."""
    training, parallel = experiment.training, experiment.parallel
    if training.ema is not None:
        raise ExperimentError(
            f'training.ema needs a strategy with rounds, and parallel.strategy = "{parallel.strategy}" has none; '
            "use one such as butterfly, or leave it unset"
        )
    if training.evaluate_every < 1:
        raise ExperimentError(
            f'training.evaluate_every must be 1 with parallel.strategy = "{parallel.strategy}", '
            "whose workers wait for each other only after an epoch"
        )
    for field, plain in (("compression", "none"), ("optimizer_state", "local")):
        if getattr(parallel, field) != plain:
            raise ExperimentError(f'parallel.strategy = "{parallel.strategy}" requires parallel.{field} = "{plain}"')
    if training.needs_closure:
        raise ExperimentError(
            f'training.optimizer = "{training.optimizer}" cannot be used with "{parallel.strategy}"; use sgd'
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
    if asynchronous or (experiment.parallel.workers > 1 and experiment.parallel.average == "gradients"):
        raise ExperimentError(
            f'{skipping} a worker cannot do alone while gradients are exchanged; use "bf16", or parallel.average = '
            '"weights" with a strategy that has rounds'
        )


def require_no_ranks(engine: str, world: World | None) -> str | None:
    """Return why an engine that starts its own workers cannot be used by a launcher's ranks; None without these."""
    if world is None or world.size == 1:
        return None
    return (
        f'machine.engine = "{engine}" starts its own workers, but {world.launcher} has started {world.size} ranks; use '
        f"auto, or start the program without {world.launcher}"
    )


def require_launcher_for_transport(experiment: Experiment) -> str | None:
    """Return why a transport between hosts cannot be used without a launcher; None for the others."""
    transport = experiment.machine.transport
    if transport in ("auto", "shared-memory"):
        return None
    return f'machine.transport = "{transport}" {NEEDS_LAUNCHER}'


def _exact(strategy: Strategy, n: int) -> bool:
    """Return whether n replicas are identical after every round."""
    return strategy.period(n) == 1 and strategy.round(0, n).is_exact


def _validate_gradients(experiment: Experiment) -> None:
    parallel = experiment.parallel
    for field, plain in (("outer", "none"), ("optimizer_state", "local")):
        if getattr(parallel, field) != plain:
            raise ExperimentError(
                f'parallel.average = "gradients" averages before every step and requires parallel.{field} = "{plain}"'
            )
    if experiment.training.needs_closure:
        raise ExperimentError(
            f'training.optimizer = "{experiment.training.optimizer}" evaluates several gradients a step, which cannot '
            'be averaged; set parallel.average = "weights"'
        )


def _validate_shrinking(parallel: Parallel, strategy: Strategy) -> None:
    """Raise ExperimentError for what cannot continue with fewer workers."""
    if strategy.asynchronous:
        raise ExperimentError(
            f'machine.on_failure = "continue" requires a strategy with rounds, and parallel.strategy = '
            f'"{parallel.strategy}" has none; use one such as butterfly, or set machine.on_failure = "end"'
        )
