"""From an experiment to a task: fill in defaults, load the data, and share the cores among workers."""

from typing import Any

import torch

from tenfold import data
from tenfold.common.imports import resolve
from tenfold.data import loading
from tenfold.data.table_columns import Columns
from tenfold.engines.choose import steps_together
from tenfold.errors import DataError, ExperimentError
from tenfold.experiment import Experiment, Machine
from tenfold.experiment.fields import with_defaults
from tenfold.experiment.values import PythonObject, UnrecordedObject
from tenfold.machine import affinity, cores, devices
from tenfold.training.measures import check_labels, check_target
from tenfold.training.user_schedules import check_own_schedule
from tenfold.workers.task import Task


def resolve_defaults(experiment: Experiment) -> Experiment:
    """Return the experiment with values for unset fields, and a device for "auto"; `workers` must be final."""
    if experiment.machine.device == "auto":
        experiment = experiment.replace(device=str(devices.resolve("auto")))
    return with_defaults(experiment)


def check_new_run(task: Task) -> None:
    """Raise ExperimentError for an unreachable target, labels that the loss does not know, and schedules of the epoch.

    Recorded runs that have them can be resumed.
    """
    training = task.experiment.training
    check_own_schedule(training)
    check_target(training, task.splits.classes, training.target)
    check_labels(training, task.splits.train.targets)


def prepare(
    experiment: Experiment, fetching: data.FetchProgress | None = None, *, splits: data.Splits | None = None
) -> Task:
    """Load the data and decide where the workers run; raise an error for what cannot work, before anything starts.

    `splits` are the data, if they are loaded already.
    """
    machine = experiment.machine
    workers = 1 if steps_together(experiment) else experiment.division.workers
    per_worker, pinned = assign_cores(machine, workers, cores.budget())
    if not cores.use_threads_that_exist() and workers == 1:
        per_worker = 1
    device = devices.resolve(machine.device)
    loaded = splits or load(experiment, device, fetching)
    if loaded.multi_label and experiment.training.loss is None:
        raise ExperimentError(
            f'the targets are 0 and 1 in {loaded.outputs} columns; set loss = "bce" for several labels per sample, '
            'or give y.argmax(1) or set loss = "cross-entropy" for one class per sample'
        )
    return Task(experiment, loaded, per_worker, pinned)


def assign_cores(machine: Machine, workers: int, budget: int) -> tuple[int, affinity.CoreMap]:
    """Share a budget of cores among workers; return the number of threads of each, and the cores it is pinned to.

    Virtual workers take turns on these cores and are not pinned.
    """
    if machine.engine == "virtual":
        return min(budget, cores.share(budget, workers, machine.threads, oversubscribe=True)), affinity.NOT_PINNED
    if machine.pin == "none":
        threads = cores.share(budget, workers, machine.threads, oversubscribe=machine.oversubscribe)
        return threads, affinity.NOT_PINNED
    usable = affinity.cpu_count_of(machine.pin, budget)
    per_worker = cores.share(usable, workers, machine.threads, oversubscribe=machine.oversubscribe)
    return per_worker, affinity.plan(cores.Topology.read(), workers, per_worker, machine.pin)


def load(experiment: Experiment, device: torch.device | str, fetching: data.FetchProgress | None = None) -> data.Splits:
    """Load the data to a device."""
    return _read_section(experiment.data, fetching).to(device)


def _read_section(section: Any, fetching: data.FetchProgress | None) -> data.Splits:
    """Read the data that an experiment's section `data` describes."""
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
        groups=_groups(section.groups),
        loader_workers=section.loader_workers,
        loader=section.loader,
        columns=Columns(section.input_columns, section.target_column),
        collate=python_value(section.collate, "collate"),
        standardize=section.standardize,
        progress=fetching,
    )


def _groups(given: Any) -> Any:
    """Return the groups that were given, or what "package.module:callable" returns."""
    value = python_value(given, "groups")
    return value() if callable(value) else value


def python_value(given: Any, field: str) -> Any:
    """Return the Python object that a field was given, or that its import path names."""
    if isinstance(given, UnrecordedObject):
        raise DataError(f"{field} {given} was given as a Python object; pass it again")
    if isinstance(given, str):
        return resolve(given, field, DataError)
    return given.value if isinstance(given, PythonObject) else given
