"""From an experiment to a task: the data loaded, and the cores shared out."""

from pathlib import Path
from typing import Any

import torch

from tenfold import data
from tenfold.common.imports import resolve
from tenfold.data import loading
from tenfold.data.files.known_data import KnownData
from tenfold.data.table_columns import Columns
from tenfold.engines.choose import steps_together
from tenfold.errors import DataError, ExperimentError
from tenfold.experiment import Experiment, Machine
from tenfold.experiment.fields import with_defaults
from tenfold.experiment.values import PythonObject, RecordedObject
from tenfold.machine import affinity, cores, devices
from tenfold.workers.task import Task


def settle(experiment: Experiment) -> Experiment:
    """Return the experiment with what "auto" and unset fields stand for here; the number of workers has to be final."""
    if experiment.machine.device == "auto":
        experiment = experiment.replace(device=str(devices.resolve("auto")))
    return with_defaults(experiment)


def prepare(
    experiment: Experiment, fetching: data.FetchProgress | None = None, *, splits: data.Splits | None = None
) -> Task:
    """Load the data and decide where the workers run; raise an error for what cannot work, before anything starts.

    `splits` are the data where they were loaded before.
    """
    machine = experiment.machine
    workers = 1 if steps_together(experiment) else experiment.division.workers
    per_worker, pinned = seats(machine, workers, cores.budget())
    device = devices.resolve(machine.device)
    loaded = splits or load(experiment, device, fetching)
    if loaded.multi_label and experiment.training.loss is None:
        raise ExperimentError(
            f'the targets are 0 and 1 in {loaded.outputs} columns; set loss = "bce" for several labels per sample, '
            'or give y.argmax(1) or set loss = "cross-entropy" for one class per sample'
        )
    return Task(experiment, loaded, per_worker, pinned)


def seats(machine: Machine, workers: int, budget: int) -> tuple[int, affinity.CoreMap]:
    """Return how many threads each of the workers that share a budget of cores has, and where it is pinned.

    Virtual workers only borrow these cores, in turns.
    """
    if machine.engine == "virtual":
        return min(budget, cores.share(budget, workers, machine.threads, oversubscribe=True)), affinity.NOT_PINNED
    if machine.pin == "none":
        threads = cores.share(budget, workers, machine.threads, oversubscribe=machine.oversubscribe)
        return threads, affinity.NOT_PINNED
    usable = affinity.room(machine.pin, budget)
    per_worker = cores.share(usable, workers, machine.threads, oversubscribe=machine.oversubscribe)
    return per_worker, affinity.plan(cores.Topology.read(), workers, per_worker, machine.pin)


def load(experiment: Experiment, device: torch.device | str, fetching: data.FetchProgress | None = None) -> data.Splits:
    """Load the data to a device."""
    return _read_section(experiment.data, fetching).to(device)


def _read_section(section: Any, fetching: data.FetchProgress | None) -> data.Splits:
    """Read the data that an experiment's section `data` describes."""
    if isinstance(section.name, RecordedObject):
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
        collate=_python_value(section.collate, "collate"),
        standardize=section.standardize,
        progress=fetching,
    )


def read_like(experiment: Experiment, facts: dict[str, Any], given: Any) -> data.Splits:
    """Read other data as those of a run were read, in the parts that they come in.

    The columns and the collate function are those of its experiment, categories and classes those of its facts.
    """
    section, known = experiment.data, KnownData.of(facts)
    is_folder = isinstance(given, str) and Path(given).expanduser().is_dir()
    are_images = is_folder and known is not None and not known.features
    return loading.read(
        given,
        section.options if are_images else None,
        columns=Columns(section.input_columns, section.target_column),
        collate=_python_value(section.collate, "collate"),
        known=known,
    )


def _groups(given: Any) -> Any:
    """Return the groups that were given, or what "package.module:callable" returns."""
    value = _python_value(given, "groups")
    return value() if callable(value) else value


def _python_value(given: Any, field: str) -> Any:
    """Return the Python object that a field was given, or that its import path names."""
    if isinstance(given, RecordedObject):
        raise DataError(f"{field} {given} was given as a Python object; pass it again")
    if isinstance(given, str):
        return resolve(given, field, DataError)
    return given.value if isinstance(given, PythonObject) else given
