"""From an experiment to a task: the data loaded, the cores shared out, and the facts of it all written down."""

import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tenfold import data
from tenfold.common.imports import resolve
from tenfold.data import loading
from tenfold.data.files.known_data import KnownData
from tenfold.data.table_columns import Columns
from tenfold.engines.choose import steps_together
from tenfold.engines.own_files import own_files
from tenfold.errors import DataError, ExperimentError, StoreError
from tenfold.experiment import Experiment, Machine
from tenfold.experiment.fields import with_defaults
from tenfold.experiment.values import PythonObject, RecordedObject
from tenfold.machine import affinity, cores, devices, facts
from tenfold.models import parameter_count
from tenfold.workers.task import Task, make_network

MOST_CLASSES_COUNTED = 100
"""Beyond so many, the audit of shards counts samples but not classes."""


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


def describe(task: Task) -> dict[str, Any]:
    """Return what is recorded with a run: machine, packages, command line, code version, data."""
    machine = facts.facts()
    splits = task.splits
    return {
        "machine": machine,
        "packages": machine.pop("packages"),
        "command": _command(),
        "code": _commit(),
        "own_files": own_files(task.experiment),
        "parameters": parameter_count(make_network(task)),
        "data": {
            "name": splits.name,
            "shape": splits.shape if isinstance(splits.shape, dict) else list(splits.shape),
            "classes": splits.classes,
            **({"notes": splits.notes, "features": splits.features} if splits.features else {}),
            **({"class_names": splits.class_names} if splits.features or splits.class_names else {}),
            "outputs": splits.outputs,
            "train": len(splits.train),
            "validation": len(splits.validation) if splits.validation else 0,
            "test": len(splits.test) if splits.test else 0,
            "fingerprint": splits.fingerprint(),
        },
        "shards": audit(task),
        "cores": asdict(task.cores),
    }


def check_same_data(record: dict[str, Any], task: Task) -> None:
    """Raise StoreError if the data differ from those that the run was started with."""
    if record["facts"]["data"]["fingerprint"] != task.splits.fingerprint():
        number = record["id"]
        raise StoreError(f"the data of run {number} have changed since it began; start a new one with `tenfold train`")


def audit(task: Task) -> dict[str, Any]:
    """Return what each replica gets to see, and whether all together hold every sample exactly once."""
    train, classes = task.splits.train, task.splits.classes
    dealt = np.concatenate(task.shards)
    counts = None
    if classes is not None and classes <= MOST_CLASSES_COUNTED and train.targets is not None:
        labels = train.targets.cpu().numpy()
        counts = [np.bincount(labels[shard], minlength=classes).tolist() for shard in task.shards]
    return {
        "kind": task.experiment.division.shards,
        "samples": [len(shard) for shard in task.shards],
        "classes": counts,
        "once": len(dealt) == len(train) and bool((np.bincount(dealt, minlength=len(train)) == 1).all()),
    }


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
    are_images = known is not None and not known.features and isinstance(given, str) and Path(given).is_dir()
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


def _command() -> str:
    program = Path(sys.argv[0])
    return shlex.join(["tenfold" if program.name in ("__main__.py", "tenfold") else program.name, *sys.argv[1:]])


def _commit() -> str:
    """Return the commit of the folder that the run was started in, "+" for uncommitted changes; "" outside git."""
    try:
        here = Path.cwd()
        if "GIT_DIR" not in os.environ and not any((folder / ".git").exists() for folder in (here, *here.parents)):
            return ""  # without starting git to hear it
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*command: str) -> str:
    return subprocess.run(["git", *command], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
