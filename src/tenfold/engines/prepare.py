"""Turn an experiment into the task of its workers: checks, defaults, engine, data, cores, metadata."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tenfold import data
from tenfold.common.imports import resolve as import_by_name
from tenfold.common.imports import warn_user
from tenfold.data import loading
from tenfold.data.dataset_part import Columns
from tenfold.data.part import labels_in
from tenfold.data.streams import StreamPart
from tenfold.data.user_datasets import ValueRules
from tenfold.errors import DataError, ExperimentError, StoreError
from tenfold.experiment import STAGE_FIELDS, Experiment, Machine, Parallel
from tenfold.experiment.values import AUTO, PythonObject, UnrecordedObject, format_value, member_of
from tenfold.launchers import World, detect_world
from tenfold.machine import cores, devices
from tenfold.machine.cores import NOT_PINNED, CoreMap, cpu_count_of, plan
from tenfold.machine.metadata import collect_metadata, origin
from tenfold.registry import ENGINES, SCHEDULES, STRATEGIES, package_of
from tenfold.training.measures import check_labels, check_target, compares_numbers, takes_any_labels
from tenfold.training.optimizers import try_options
from tenfold.training.schedules import check_own_schedule
from tenfold.workers.task import Mixing, Resolved, Task

if TYPE_CHECKING:
    from tenfold.engines.base import Engine

Notify = Callable[[str], None]


def ignore(_text: str) -> None:
    """Ignore a note."""


def resolve(experiment: Experiment, notify: Notify = ignore) -> Resolved:
    """Resolve an experiment for training here, with its engine; raise ExperimentError if that is impossible.

    `notify` is called with an engine's notes before training begins.
    """
    resolved, engine_class = _resolve(experiment, detect_world(), notify)
    return replace(resolved, engine=engine_class.create(resolved, notify))


def make_engine(resolved: Resolved) -> "Engine":
    """Return the engine of an experiment that was resolved without one, such as a fold's."""
    return choose(resolved.experiment, resolved.world).create(resolved, ignore)


def choose(experiment: Experiment, world: World | None = None, notify: Notify = ignore) -> "type[Engine]":
    """Return the class of the experiment's engine; with "auto", the first one whose `is_usual` is true.

    Engines of installed packages come first, because the built-in ones cover every experiment; `notify` receives a
    note about them.
    """
    named = experiment.machine.engine
    if named != AUTO:
        return _checked(member_of(ENGINES, named))
    if (installed := installed_engine(experiment, world)) is not None:
        notify(f'engine "{installed}" of the package {package_of(ENGINES.plugins[installed])}')
        return _checked(ENGINES[installed])
    built_in = (ENGINES[name] for name in ENGINES.built_in)  # imported only up to the selected one
    usual = (engine_class for engine_class in built_in if engine_class.is_usual(experiment, world))
    engine_class: type[Engine] | None = next(usual, None)
    if engine_class is None:
        raise ExperimentError(
            f"no engine is the default for {experiment.parallel.workers} workers on {experiment.machine.device}; set "
            f"machine.engine to one of {', '.join(ENGINES)}"
        )
    return engine_class


def installed_engine(experiment: Experiment, world: World | None = None) -> str | None:
    """Return the name of the installed package's engine that "auto" selects; None if it selects a built-in one.

    Only a class that defines `is_usual` itself can be selected; otherwise a subclass of a built-in engine would
    replace that engine as soon as it is installed. A package that cannot be imported is skipped, with a warning.
    """
    for name in ENGINES.plugins:
        try:
            engine_class = _checked(ENGINES[name])
        except ExperimentError as error:
            warn_user(f"{error}; other engines are used")
            continue
        if "is_usual" in vars(engine_class) and engine_class.is_usual(experiment, world):
            return name
    return None


def _checked(member: Any) -> "type[Engine]":
    """Return `member` if it is an engine class; raise ExperimentError for anything else."""
    from tenfold.engines.base import Engine

    if not (isinstance(member, type) and issubclass(member, Engine)):
        raise ExperimentError(f"machine.engine should be a subclass of tenfold.engines.Engine, not {member!r}")
    return member


def is_launched(experiment: Experiment, world: World | None) -> bool:
    """Return whether the workers are a launcher's ranks: several, or the last remaining one."""
    if world is None:
        return False
    return world.size > 1 or (world.restarts > 0 and experiment.machine.on_failure == "continue")


def trains_on_cpu(experiment: Experiment) -> bool:
    """Return whether the experiment's device is the CPU, by name or because there is no GPU."""
    device = experiment.machine.device
    return (devices.resolve("auto").type if device == "auto" else device) == "cpu"


# Check that an experiment can run here: no settings contradict each other, or the launcher of this program.
#
# Single values are checked when the experiment is created (`tenfold.experiment`); `prepare` makes the checks that need
# the data or this machine's cores and memory, before a run is recorded.

NEEDS_LAUNCHER = "requires a launcher; start the program with torchrun, mpirun or srun, or use auto"


def validate(experiment: Experiment, world: World | None = None) -> "type[Engine]":
    """Return the class of the engine that trains an experiment; raise ExperimentError if none can.

    `world` describes the launcher's ranks, if there are any.
    """
    return _resolve(experiment, world, ignore)[1]


def _resolve(experiment: Experiment, world: World | None, notify: Notify) -> "tuple[Resolved, type[Engine]]":
    if (folds := experiment.parallel.folds) is not None:
        raise ExperimentError(
            f"parallel.folds = {folds}: `tenfold train` trains one model; use `tenfold crossval` or "
            "tenfold.cross_validate to train one for each fold"
        )
    engine_class = choose(experiment, world, notify)
    if (reason := engine_class.supports(experiment, world)) is not None:
        raise ExperimentError(reason)
    if world is not None and (engine_class.needs_launcher or is_launched(experiment, world)):
        resolved = Resolved.of(experiment.replace(workers=world.size), world)
    else:
        resolved = Resolved.of(experiment)
    validate_combination(resolved)
    if resolved.experiment.parallel.divides_model:
        _raise_first(_problems_of_divided_model(resolved, engine_class))
    training = resolved.experiment.training
    if training.optimizer_options or training.nesterov or training.needs_closure:
        try_options(training)
    return resolved, engine_class


def require_no_launcher(what: str) -> None:
    """Raise ExperimentError under a launcher, for commands that would start their own workers in every rank."""
    world = detect_world()
    if world is not None and world.size > 1:
        raise ExperimentError(
            f"{what} starts its own workers, but {world.launcher} started {world.size} ranks; "
            f"run it without {world.launcher}"
        )


def validate_combination(resolved: Resolved) -> None:
    """Raise ExperimentError for fields that do not work together, such as a strategy and an outer optimizer."""
    _raise_first(_problems_of_combination(resolved))


def _raise_first(problems: Iterator[str]) -> None:
    if (problem := next(problems, None)) is not None:
        raise ExperimentError(problem)


def _problems_of_combination(resolved: Resolved) -> Iterator[str]:
    experiment, strategy = resolved.experiment, resolved.strategy
    training, parallel, machine = experiment.training, experiment.parallel, experiment.machine
    may_shrink, n = machine.on_failure == "continue" and not machine.is_virtual, parallel.replicas
    by_gradients, optimizer = parallel.average == "gradients", f'training.optimizer = "{training.optimizer}"'
    yield from _problems_of_idle_stages(parallel)
    yield from _problems_of_inexact_rounds(resolved.mixing, range(n, 0, -1) if may_shrink else [n])
    if may_shrink and n > 1 and strategy.asynchronous:
        yield (
            f'machine.on_failure = "continue" requires a strategy with rounds, and parallel.strategy = '
            f'"{parallel.strategy}" has none; use one such as butterfly, or set machine.on_failure = "end"'
        )
    if training.optimizer_traits.steps_with_all_workers:
        yield from _problems_of_joint_steps(resolved)
    if by_gradients:
        for field, plain in (("outer", "none"), ("optimizer_state", "local")):
            if getattr(parallel, field) != plain:
                averages = 'parallel.average = "gradients" averages before every step'
                yield f'{averages} and requires parallel.{field} = "{plain}"'
    if by_gradients and training.needs_closure:
        yield (
            f"{optimizer} evaluates several gradients a step, which cannot be averaged; set parallel.average = "
            '"weights"'
        )
    if parallel.optimizer_state == "average" and training.needs_closure:
        yield f'{optimizer} has no state to average; set parallel.optimizer_state = "local"'
    if training.precision == "fp64" and machine.device.startswith("mps"):
        yield 'training.precision = "fp64" is not available on Apple\'s GPUs; set machine.device = "cpu"'
    if training.compile is True and not machine.is_virtual and trains_on_cpu(experiment):
        yield (
            "training.compile is for GPUs: on CPUs compiled networks were slower; leave it unset, or set it to "
            '"auto", which compiles on GPUs alone'
        )
    if training.precision == "fp16":
        yield from _problems_of_fp16(experiment, asynchronous=strategy.asynchronous)
    if strategy.asynchronous:
        yield from _problems_without_rounds(experiment)


def _problems_of_divided_model(resolved: Resolved, engine_class: "type[Engine]") -> Iterator[str]:
    """Yield a problem for each option that a divided model does not support."""
    experiment = resolved.experiment
    training, parallel = experiment.training, experiment.parallel
    divide = f'parallel.divide = "{parallel.divide}"'
    if not engine_class.divides_models:
        yield (
            f"{divide} needs worker processes on the CPUs of one machine, not the engine {engine_class.name}; use "
            'machine.device = "cpu" without a launcher'
        )
    if resolved.strategy.asynchronous:
        yield f'{divide} needs a strategy with rounds, not "{parallel.strategy}"; use butterfly'
    if experiment.machine.on_failure == "continue":
        yield f'{divide}: no worker can do without the others; set machine.on_failure = "end"'
    if training.needs_closure or training.optimizer_traits.averages_weights:
        yield f"{divide}: {training.optimizer} needs the whole model on one worker; use muon or sgd"
    if parallel.divide == "layers" and training.accumulate > 1:
        yield (
            f"{divide}: micro-batches are the pieces of a batch; set parallel.micro_batches = {training.accumulate} "
            "instead of training.accumulate"
        )


def _problems_of_idle_stages(parallel: Parallel) -> Iterator[str]:
    """Yield a problem for each pipeline field without effect, because the layers are not divided."""
    if parallel.divide == "layers":
        return
    for field in STAGE_FIELDS:
        value = getattr(parallel, field)
        if value != Parallel.model_fields[field].default:
            given = format_value(list(value) if isinstance(value, tuple) else value)
            yield (
                f'parallel.{field} = {given} has no effect with parallel.divide = "{parallel.divide}"; set '
                'parallel.divide = "layers", or leave it unset'
            )


def _problems_of_inexact_rounds(mixing: Mixing, counts: Sequence[int]) -> Iterator[str]:
    """Yield a problem for each option that needs identical replicas after each round, for counts without these."""
    parallel, strategy = mixing.parallel, mixing.strategy
    choices = {
        "outer": parallel.outer != "none",
        "compression": mixing.make_compressor(1).error_feedback,
        "average": parallel.average == "gradients",
    }
    inexact = next((n for n in counts if strategy.period(n) != 1 or not strategy.round(0, n).is_exact), None)
    exact = [name for name in STRATEGIES.built_in if STRATEGIES[name].always_exact]
    for field, chosen in choices.items():
        if chosen and inexact is not None:
            left = f" with the {inexact} workers that may be left" if inexact != parallel.workers else ""
            yield (
                f'parallel.{field} = "{getattr(parallel, field)}" requires identical replicas after each round, '
                f'which "{parallel.strategy}" does not guarantee{left}; use {" or ".join(exact)}'
            )


def _problems_without_rounds(experiment: Experiment) -> Iterator[str]:
    """Yield a problem for each option that needs rounds, because asynchronous strategies have none."""
    training, parallel = experiment.training, experiment.parallel
    strategy = f'parallel.strategy = "{parallel.strategy}"'
    if training.ema is not None:
        yield (
            f"training.ema needs a strategy with rounds, and {strategy} has none; use one such as butterfly, or leave "
            "it unset"
        )
    if training.evaluate_every < 1:
        yield f"training.evaluate_every must be 1 with {strategy}, whose workers wait for others only after an epoch"
    for field, plain in (("compression", "none"), ("optimizer_state", "local")):
        if getattr(parallel, field) != plain:
            yield f'{strategy} requires parallel.{field} = "{plain}"'
    if training.needs_closure:
        yield f'training.optimizer = "{training.optimizer}" cannot be used with "{parallel.strategy}"; use sgd'


def _problems_of_joint_steps(resolved: Resolved) -> Iterator[str]:
    """Yield a problem for each option that an optimizer with joint steps of all workers does not support."""
    experiment = resolved.experiment
    training, parallel = experiment.training, experiment.parallel
    problems = {
        "a launcher's ranks: start it without one": resolved.world is not None,
        f'machine.device = "{experiment.machine.device}": set it to "cpu"': not trains_on_cpu(experiment),
        f'parallel.divide = "{parallel.divide}": leave it unset': parallel.divides_model,
        f'parallel.strategy = "{parallel.strategy}": leave it unset': not resolved.strategy.always_exact,
        f'parallel.outer = "{parallel.outer}": leave it unset': parallel.outer != "none",
        f'parallel.compression = "{parallel.compression}": leave it unset': parallel.compression != "none",
        f"training.clip = {training.clip}: its line search needs whole gradients; leave it unset": training.clip,
        "training.ema: its weights do not move step by step; leave it unset": training.ema is not None,
        f"training.accumulate = {training.accumulate}: it cuts batches into portions": training.accumulate > 1,
        "model.batchnorm: set it to false": experiment.model.batchnorm,
    }
    for text, holds in problems.items():
        if holds:
            yield f'training.optimizer = "{training.optimizer}" cannot be used with {text}'


def _problems_of_fp16(experiment: Experiment, *, asynchronous: bool) -> Iterator[str]:
    """Yield a problem for each option with which steps cannot be skipped after an overflow of their gradients."""
    parallel, skipping = experiment.parallel, 'training.precision = "fp16" skips steps whose gradients overflow, which'
    if trains_on_cpu(experiment):
        yield 'training.precision = "fp16" is for GPUs; on a CPU use "bf16", which needs no loss scaling'
    if experiment.training.needs_closure:
        yield f'{skipping} {experiment.training.optimizer} cannot do; use "bf16"'
    if asynchronous or (parallel.workers > 1 and parallel.average == "gradients"):
        yield (
            f'{skipping} a worker cannot do alone while gradients are exchanged; use "bf16", or parallel.average = '
            '"weights" with a strategy that has rounds'
        )


def why_not_among_ranks(engine: str, world: World | None) -> str | None:
    """Return why a launcher's ranks cannot use an engine that starts its own workers; None without a launcher."""
    if world is None or world.size == 1:
        return None
    return (
        f'machine.engine = "{engine}" starts its own workers, but {world.launcher} started {world.size} ranks; use '
        f"auto, or start the program without {world.launcher}"
    )


def why_transport_needs_launcher(experiment: Experiment) -> str | None:
    """Return why the transport needs a launcher; None if it does not."""
    transport = experiment.machine.transport
    if transport in ("auto", "shared-memory"):
        return None
    return f'machine.transport = "{transport}" {NEEDS_LAUNCHER}'


# From a resolved experiment to a task: load the data, divide the cores among workers, and collect the metadata.


def check_new_run(task: Task) -> None:
    """Raise ExperimentError for an unreachable target, unsupported labels of the loss, and schedules of the epoch.

    These are checked only for new runs; recorded runs with them can still be resumed.
    """
    training = task.experiment.training
    if training.lr_schedule_name not in SCHEDULES:
        check_own_schedule(training)
    check_target(training, task.splits.classes, training.target)
    check_labels(training, task.splits.train.targets)


def prepare(
    resolved: Resolved,
    *,
    splits: data.Splits | None = None,
    together: bool | None = None,
) -> Task:
    """Load the data and assign cores to workers; raise an error for anything impossible before training starts.

    `splits` are the data, if already loaded. `together` is whether all workers step together on one device; by default
    this depends on the experiment's engine.
    """
    experiment = resolved.experiment
    if together is None:
        together = (resolved.engine or choose(experiment, resolved.world)).steps_together
    workers = 1 if together else experiment.parallel.workers
    per_worker, pinned = assign_cores(experiment.machine, workers, cores.budget())
    if not cores.use_threads_that_exist() and workers == 1:
        per_worker = 1
    return load_task(resolved, per_worker, pinned, splits=splits)


def assign_cores(machine: Machine, workers: int, budget: int) -> tuple[int, CoreMap]:
    """Divide a budget of cores among workers; return the number of threads of each, and the cores it is pinned to.

    Virtual workers take turns on these cores and are not pinned.
    """
    if machine.is_virtual:
        return min(budget, cores.share(budget, workers, machine.threads, oversubscribe=True)), NOT_PINNED
    if machine.pin == "none":
        threads = cores.share(budget, workers, machine.threads, oversubscribe=machine.oversubscribe)
        return threads, NOT_PINNED
    usable = cpu_count_of(machine.pin, budget)
    per_worker = cores.share(usable, workers, machine.threads, oversubscribe=machine.oversubscribe)
    return per_worker, plan(cores.Topology.read(), workers, per_worker, machine.pin)


def load_task(
    resolved: Resolved,
    threads: int,
    cores: CoreMap = NOT_PINNED,
    *,
    splits: data.Splits | None = None,
) -> Task:
    """Load the data, unless `splits` are given; floats get the dtype of the network's weights."""
    experiment = resolved.experiment
    usual = torch.float64 if experiment.training.precision == "fp64" else torch.float32
    loaded = splits or load(experiment, usual)
    if loaded.multi_label and experiment.training.loss is None:
        raise ExperimentError(
            f'the targets are 0 and 1 in {loaded.outputs} columns; for several labels per sample set loss = "bce", '
            'for one class per sample pass y.argmax(1) or set loss = "cross-entropy"'
        )
    task = Task.of(resolved, loaded, threads, cores)
    dtype = task.metadata.dtype
    if splits is None and dtype != usual:  # read again without loss of precision
        loaded = load(experiment, dtype)
    return replace(task, splits=loaded.to(resolved.device, dtype if splits is not None else None))


def load(experiment: Experiment, dtype: torch.dtype) -> data.Splits:
    """Read the data of an experiment's section `data`, with floats in this dtype."""
    section: Any = experiment.data
    if isinstance(section.name, UnrecordedObject):
        raise DataError(f"the data {section.name} were given as Python objects; pass them again")
    return loading.load(
        section.name.value if isinstance(section.name, PythonObject) else section.name,
        options=section.options,
        test_fraction=section.test_fraction,
        validation_fraction=section.validation_fraction,
        stratify=section.stratify,
        split_seed=section.split_seed,
        limit=section.limit,
        epoch_samples=section.epoch_samples,
        groups=_groups(section.groups),
        loader_workers=section.loader_workers,
        loader=section.loader,
        columns=Columns(section.input_columns, section.target_column),
        collate=python_value(section.collate, "collate"),
        standardize=section.standardize,
        rules=ValueRules(section.classes, takes_any_labels(experiment.training), dtype),
        standardize_targets=compares_numbers(experiment.training),
    )


def _groups(given: Any) -> Any:
    """Return the groups; if they are an import path of a callable, its result."""
    value = python_value(given, "groups")
    return value() if callable(value) else value


def python_value(given: Any, field: str) -> Any:
    """Return a field's Python object, imported if the field is an import path."""
    if isinstance(given, UnrecordedObject):
        raise DataError(f"{field} {given} was given as a Python object; pass it again")
    if isinstance(given, str):
        return import_by_name(given, field, DataError)
    return given.value if isinstance(given, PythonObject) else given


MOST_CLASSES_COUNTED = 100
"""With more classes than this, the audit of shards counts only samples, not those of each class."""


def describe(task: Task) -> dict[str, Any]:
    """Return the metadata of a new run: machine, packages, command line, code version, data."""
    machine, splits = collect_metadata(), task.splits
    return {
        "machine": machine,
        "packages": machine.pop("packages"),
        **origin(task.experiment),
        **({"asked": task.asked} if task.asked else {}),
        "parameters": task.metadata.parameters,
        "weight_bytes": task.metadata.nbytes,
        "lr": {"base": task.metadata.base_lr, "scale": task.resolved.lr_scale},
        "data": {
            "name": splits.name,
            "shape": splits.shape if isinstance(splits.shape, dict) else list(splits.shape),
            "classes": splits.classes,
            **({"notes": splits.notes, "features": splits.features} if splits.features else {}),
            **({"class_names": splits.class_names} if splits.features or splits.class_names else {}),
            "outputs": splits.outputs,
            **({"loss_unit": splits.loss_unit.tolist()} if splits.loss_unit is not None else {}),
            "train": len(splits.train),
            "validation": len(splits.validation) if splits.validation else 0,
            "test": len(splits.test) if splits.test else 0,
            "fingerprint": splits.fingerprint(),
        },
        "shards": audit(task),
        "cores": asdict(task.cores),
        **({"executor": executor} if (executor := _executor.get()) else {}),
    }


_executor: ContextVar[str] = ContextVar("executor", default="")


@contextmanager
def recording_executor(name: str) -> Iterator[None]:
    """In this block, new runs record the name of the executor that started this process as a rank."""
    before = _executor.set(name)
    try:
        yield
    finally:
        _executor.reset(before)


def check_same_data(record: dict[str, Any], task: Task) -> None:
    """Raise StoreError if the data differ from the data at the start of the run."""
    if record["metadata"]["data"]["fingerprint"] != task.splits.fingerprint():
        number = record["id"]
        raise StoreError(
            f"the data of run {number} have changed since it started; start a new run with `tenfold train`"
        )


def audit(task: Task) -> dict[str, Any]:
    """Return the samples of each replica, and whether together they cover every sample exactly once."""
    train, classes = task.splits.train, task.splits.classes
    dealt = np.concatenate(task.shards)
    counts = None
    labels = labels_in(train.targets) if train.targets is not None else None
    if classes is not None and classes <= MOST_CLASSES_COUNTED and labels is not None and labels.min() >= 0:
        counts = [np.bincount(labels[shard], minlength=classes).tolist() for shard in task.shards]
    return {
        "kind": task.experiment.parallel.shards,
        "samples": [len(shard) for shard in task.shards],
        "classes": counts,
        "once": None
        if isinstance(train, StreamPart)
        else len(dealt) == len(train) and bool((np.bincount(dealt, minlength=len(train)) == 1).all()),
    }
