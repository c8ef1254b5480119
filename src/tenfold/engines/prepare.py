"""From a resolved experiment to a task: load the data, and share the cores among workers."""

import hashlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tenfold import data
from tenfold.common.files import names_data_file, open_regular
from tenfold.common.imports import locate, resolve
from tenfold.data import loading
from tenfold.data.dataset_part import Columns
from tenfold.data.part import labels_in
from tenfold.data.streams import StreamPart
from tenfold.data.user_datasets import ValueRules
from tenfold.engines.resolve_experiment import choose
from tenfold.errors import DataError, ExperimentError, StoreError
from tenfold.experiment import Experiment, Machine
from tenfold.experiment.values import PythonObject, UnrecordedObject
from tenfold.machine import cores
from tenfold.machine.cores import NOT_PINNED, CoreMap, cpu_count_of, plan
from tenfold.machine.metadata import collect_metadata
from tenfold.registry import SCHEDULES, SOURCES
from tenfold.training.measures import check_labels, check_target, compares_numbers, takes_any_labels
from tenfold.training.schedules import check_own_schedule
from tenfold.workers.task import Resolved, Task


def check_new_run(task: Task) -> None:
    """Raise ExperimentError for an unreachable target, labels that the loss does not know, and schedules of the epoch.

    Recorded runs that have them can be resumed.
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
    """Load the data and decide where the workers run; raise an error for what cannot work, before anything starts.

    `splits` are the data, if they are loaded already. `together` says whether all workers step together on one device;
    by default, whether they do with the engine that the experiment means.
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
    """Share a budget of cores among workers; return the number of threads of each, and the cores it is pinned to.

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
            f'the targets are 0 and 1 in {loaded.outputs} columns; set loss = "bce" for several labels per sample, '
            'or give y.argmax(1) or set loss = "cross-entropy" for one class per sample'
        )
    task = Task.of(resolved, loaded, threads, cores)
    dtype = task.metadata.dtype
    if splits is None and dtype != usual:  # read again, so that no digit is lost
        loaded = load(experiment, dtype)
    return replace(task, splits=loaded.to(resolved.device, dtype if splits is not None else None))


def load(experiment: Experiment, dtype: torch.dtype) -> data.Splits:
    """Read the data that an experiment's section `data` describes, floats in this dtype."""
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


COMMIT_SECONDS = 2.0
"""How long the commit of a folder is taken to be the same."""
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
    """Let runs that begin in the block record the name of the executor that started this process as a rank."""
    before = _executor.set(name)
    try:
        yield
    finally:
        _executor.reset(before)


def origin(experiment: Experiment) -> dict[str, Any]:
    """Return what started a run: the command line, the version of the code, and the user's files it was made with."""
    return {"command": _command(), "code": _commit(), "user_files": user_files(experiment)}


def measuring_machine(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded metadata on which the time of a run depends, beside its experiment.

    The threads that an experiment leaves open follow from the cores.
    """
    machine = recorded.get("machine", {})
    cpu, packages = machine.get("cpu", {}), recorded.get("packages") or machine.get("packages", {})
    return {
        "host": machine.get("host"),
        "processor": cpu.get("model"),
        "cores": [cpu.get(name) for name in ("logical", "usable_physical", "quota", "budget")],
        "gpus": [gpu.get("name") for gpu in machine.get("gpus", ())],
        "versions": {name: packages.get(name) for name in ("tenfold", "torch")},
    }


def check_same_data(record: dict[str, Any], task: Task) -> None:
    """Raise StoreError if the data differ from those that the run was started with."""
    if record["metadata"]["data"]["fingerprint"] != task.splits.fingerprint():
        number = record["id"]
        raise StoreError(f"the data of run {number} have changed since it began; start a new one with `tenfold train`")


def audit(task: Task) -> dict[str, Any]:
    """Return the samples that each replica trains on, and whether all together hold every sample exactly once."""
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


def user_files(experiment: Experiment) -> dict[str, str]:
    """Return a digest of each file, folder or module of the user's that an experiment names, by its name there.

    It changes when the file does, or the names, sizes or times of the files in a folder. What a module imports is not
    looked at.
    """
    name = experiment.data.name
    digests = module_digests(experiment.import_paths)
    if isinstance(name, str) and ":" not in name and name not in SOURCES and names_data_file(name):
        digests[name] = file_digest(Path(name).expanduser())
    return digests


def module_digests(named: Iterable[object]) -> dict[str, str]:
    """Return a digest of the source file of each module that an import path names; other values are left out."""
    modules = dict.fromkeys(path.partition(":")[0] for path in named if isinstance(path, str) and ":" in path)
    return {module: file_digest(_source(module)) for module in modules}


def _source(module: str) -> Path | None:
    """Return the file of a module, which may be in the current folder."""
    files = locate(module)
    return Path(files[-1]) if files is not None else None


def file_digest(path: Path | None) -> str:
    """Return a digest of a file's content, or of a folder's list of files; "" if there is neither."""
    if path is None or not (path.is_file() or path.is_dir()):
        return ""
    if path.is_dir():
        return hashlib.blake2b(repr(_listed(path)).encode(), digest_size=8).hexdigest()
    stat = path.stat()
    return _content_digest(path.resolve(), stat.st_size, stat.st_mtime_ns)


def _listed(folder: Path) -> list[tuple[str, int, int]]:
    """Return the names, sizes and times of the files in a folder, without broken links."""
    files = []
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # removed meanwhile
            if path.is_file():
                stat = path.stat()
                files.append((str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns))
    return files


@cache
def _content_digest(path: Path, _size: int, _time: int) -> str:
    """Return a digest of a file's content; a file of the same size and time is not read again."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def _command() -> str:
    program = Path(sys.argv[0])
    return shlex.join(["tenfold" if program.name in ("__main__.py", "tenfold") else program.name, *sys.argv[1:]])


def _commit() -> str:
    """Return the commit of the current folder, looked up again after a while: many short runs begin in a second."""
    return _commit_of(Path.cwd(), round(time.monotonic() / COMMIT_SECONDS))


@lru_cache(maxsize=4)
def _commit_of(here: Path, _period: int) -> str:
    """Return the commit of the folder that the run was started in, "+" for uncommitted changes; "" outside git.

    A repository may name programs in its own settings: hooks, monitors, filters. The first two are not run by these
    commands. Where it has filters, which look at changed files, "?" stands for not having looked.
    """
    try:
        if "GIT_DIR" not in os.environ and not any((folder / ".git").exists() for folder in (here, *here.parents)):
            return ""  # known without starting git
        commit = _git("rev-parse", "--short=12", "HEAD")
        filters = _git("config", "--show-scope", "--includes", "--get-regexp", r"^filter\.", check=False)
        if any(line.startswith(("local", "worktree")) for line in filters.splitlines()):
            return f"{commit}?"
        return commit + ("+" if _git("diff-index", "--name-only", "--ignore-submodules", "HEAD") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*command: str, check: bool = True) -> str:
    line = ["git", "-c", "core.fsmonitor=false", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=5, check=check).stdout.strip()
