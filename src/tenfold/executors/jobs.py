"""A job: one setting or one fold, trained by a process that may be on another machine, and what comes back of it.

The experiment travels as TOML, and Python objects in it as a pickle, which the executor that the user named would make
anyway. A job trains in a store of its own, in a temporary folder of the machine it runs on, and returns a bundle.
"""

import io
import os
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import tomli_w

from tenfold.common.imports import describe_error
from tenfold.crossval.crossval_run import shared_data
from tenfold.crossval.fold import FoldContext, FoldJob, fold_experiment, make_fold_splits, resolve_fold_mode, train_fold
from tenfold.engines import choose, resolve
from tenfold.engines.prepare import describe, prepare
from tenfold.errors import ExperimentError, MachineError, TenfoldError
from tenfold.experiment import Experiment
from tenfold.experiment.values import PythonObject
from tenfold.machine import cores
from tenfold.runs import Event, Stopwatch, Store
from tenfold.runs.bundle import pack

JobEnd = tuple[bytes, str]
"""What a job returns: the bundle of its run, empty if there is none, and why it failed, "" if it did not."""
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_ALONE = threading.Lock()
"""Jobs in one process run one after another, as in a Dask worker with several threads."""


@dataclass(frozen=True)
class Job:
    """One setting or one fold to train."""

    experiment: str
    """The experiment as TOML, with names in the place of Python objects."""
    objects: bytes
    """These objects by field, pickled; empty if there are none."""
    kind: str
    """The kind of run that is recorded."""
    folder: str
    """The current folder at home; a job works there if its machine has it, for data files and modules."""
    path: tuple[str, ...]
    """Where home looks for modules; a job also looks there, behind its own folders."""
    cores: int
    """The number of cores that it needs: one for each thread of each worker."""
    gpus: int = 0
    fold: int | None = None
    """The position of the fold to train, of a cross-validation."""

    @classmethod
    def of(cls, experiment: Experiment, kind: str, fold: int | None = None) -> "Job":
        """Return the job that trains an experiment, or one of its folds."""
        dumped = experiment.model_dump(mode="json", exclude_none=True)
        objects = {
            field: [value.value if isinstance(value, PythonObject) else value for value in values]
            for field, values in experiment.named_values.items()
            if any(isinstance(value, PythonObject) for value in values)
        }
        trained = experiment if fold is None else fold_experiment(experiment, "fold")
        on_gpu = experiment.machine.device.startswith("cuda")
        needed = trained.parallel.workers * (experiment.machine.threads or 1)
        pickled = _pickled(objects) if objects else b""
        path = tuple(folder for folder in sys.path if Path(folder).is_dir())
        return cls(tomli_w.dumps(dumped), pickled, kind, str(Path.cwd()), path, needed, int(on_gpu), fold)

    def read_experiment(self) -> Experiment:
        """Return the experiment again; this unpickles its objects."""
        fields: dict[str, Any] = cloudpickle.loads(self.objects) if self.objects else {}
        given = {field: values if field == "metrics" else values[0] for field, values in fields.items()}
        return Experiment(**tomllib.loads(self.experiment)).replace(**given)


def _pickled(objects: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    try:
        cloudpickle.dump(objects, written)
    except Exception as error:  # whatever the objects' own code raises
        raise ExperimentError(
            f"{', '.join(objects)} cannot be sent to an executor ({type(error).__name__}: {error}); "
            'give an import path, "package.module:callable"'
        ) from None
    return written.getvalue()


def run_job(job: Job) -> JobEnd:
    """Train what a job asks for, and return the bundle of its run; an error becomes its sentence."""
    with _ALONE, tempfile.TemporaryDirectory(prefix="tenfold-job-") as folder, _working_in(job):
        store, error = Store(folder), ""
        try:
            with cores.limited_to(job.cores):
                _check_processes(job)
                _train(job, store)
        except TenfoldError as problem:
            error = str(problem)
        except Exception as problem:
            error = describe_error(problem)
        recorded = store.runs()
        return (pack(store, recorded[0]["id"]) if recorded else b""), error


def _train(job: Job, store: Store) -> None:
    experiment = job.read_experiment()
    if job.fold is not None:
        _train_fold(experiment, job, store)
        return
    resolved = resolve(experiment)
    resolved.engine.train(
        resolved.experiment, runs=store.folder, kind=job.kind, stopwatch=Stopwatch(), listen=_ignore, fetching=None
    )


def _train_fold(experiment: Experiment, job: Job, store: Store) -> None:
    """Train one fold of a cross-validation; raise TenfoldError if it fails."""
    stopwatch = Stopwatch()
    with shared_data(prepare(experiment)) as task:
        split = make_fold_splits(task)[job.fold or 0]
        stored = Experiment(**experiment.model_dump(mode="json"))
        context = FoldContext(stored, store, 0, describe(task), stopwatch)
        by_fold = resolve_fold_mode(experiment) == "fold-by-fold"
        threads = task.threads if by_fold else cores.share(job.cores, 1, experiment.machine.threads)
        placed = FoldJob(job.fold or 0, split, threads=threads, cores=tuple(range(job.cores)))
        engine = choose(fold_experiment(experiment, split.name))()
        with cores.using_threads(threads):
            end = train_fold(engine.run, replace(task, threads=threads), context, placed, _ignore)
    if end.result is None:
        raise TenfoldError(end.error)


def _check_processes(job: Job) -> None:
    """Raise MachineError where this process may not start the worker processes that the experiment needs."""
    from multiprocessing import current_process

    experiment = job.read_experiment()
    trained = experiment if job.fold is None else fold_experiment(experiment, "fold")
    if trained.parallel.workers > 1 and current_process().daemon:
        raise MachineError(
            f"{trained.parallel.workers} workers need processes, but a daemonic process may not start any; for Dask, "
            'set "distributed.worker.daemon" to False before its workers start: '
            'dask.config.set({"distributed.worker.daemon": False})'
        )


@contextmanager
def _working_in(job: Job) -> Iterator[None]:
    """Work in the folder of home and look for modules where home does, as far as this machine has these folders.

    A launcher that started the worker, such as srun, is hidden: a job is no rank.
    """
    before, variables = Path.cwd(), {name: os.environ.pop(name) for name in RANK_VARIABLES if name in os.environ}
    sys.path += [folder for folder in job.path if folder not in sys.path and Path(folder).is_dir()]
    if Path(job.folder).is_dir():
        os.chdir(job.folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.update(variables)


def _ignore(_event: Event) -> None:
    """Ignore an event; it is recorded."""
