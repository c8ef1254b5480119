"""A job: one setting or one fold, trained by a process that may be on another machine, and its outcome.

The experiment is sent as TOML, with its Python objects as a pickle, which the executor would create anyway. A job
trains in a separate store and returns a bundle. If the job's machine can see the run store of the submitting machine,
that separate store is a folder beside it, so a repeated job continues from its checkpoint; otherwise it is a temporary
folder of the job's machine.
"""

import hashlib
import io
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import tomli_w

from tenfold.common import __version__
from tenfold.common.files import read_regular, unsynced, write_atomically
from tenfold.common.imports import describe_error
from tenfold.crossval.crossval_run import shared_data
from tenfold.crossval.fold import (
    FoldContext,
    FoldJob,
    FoldMode,
    fold_experiment,
    make_fold_splits,
    resolve_fold,
    train_fold,
)
from tenfold.engines import Resolved, make_engine, resolve
from tenfold.engines.prepare import describe, recording_executor
from tenfold.errors import ExperimentError, MachineError, StoreError, TenfoldError, WorkerLost
from tenfold.experiment import Experiment
from tenfold.experiment.values import PythonObject
from tenfold.launchers import LAUNCHERS
from tenfold.machine import cores
from tenfold.runs import Store
from tenfold.runs.bundle import pack
from tenfold.runs.callbacks import Callbacks, StopBehind
from tenfold.runs.events import Emit, Event, Metric, Started, Stopwatch, ignore
from tenfold.runs.store import RemoteStore

JobEnd = tuple[bytes, str]
"""The outcome of a job: the bundle of its run, empty if there is none, and its error, "" if it succeeded."""
OF_RUN = "run "
"""The prefix of the scope of a job that belongs to a cross-validation or sweep at home."""
FOLDER = "jobs"
"""The folder in a run store that holds the stores of unfinished jobs."""
TOKEN = "token"
"""A file in the folder of all jobs by which a machine recognizes that it shares this folder with home."""
STORE = "store"
"""The store in the folder of a job, to which its training is recorded."""
PROGRESS = "progress.json"
PROGRESS_SECONDS = 1.0
"""Interval at which a job writes its progress."""
_ALONE = threading.Lock()
"""Jobs in one process run one after another, as in a Dask worker with several threads."""


@dataclass(frozen=True)
class Job:
    """One setting or one fold to train."""

    experiment: str
    """The experiment as TOML, with names in the place of Python objects."""
    objects: bytes
    """The Python objects by field, pickled; empty if there are none."""
    kind: str
    """The kind of run that is recorded."""
    folder: str
    """The current folder at home; a job works there if its machine has it, for data files and modules."""
    path: tuple[str, ...]
    """The module search path at home; a job appends it to its own."""
    cores: int
    """The number of cores it needs: one for each thread of each worker."""
    gpus: int = 0
    """1 if it trains on a GPU, where all its workers step together; otherwise 0."""
    any_gpu: bool = False
    """Whether it uses a GPU if one is available and otherwise runs without one."""
    fold: int | None = None
    """In a cross-validation, the position of the fold to train."""
    stop_behind: StopBehind | None = None
    """When to stop the training because it has fallen behind other runs."""
    label: str = ""
    """Its name in lists of jobs."""
    scope: str = ""
    """Distinguishes otherwise equal jobs, such as the same fold of two cross-validations."""
    kept_in: str = ""
    """The folder at home for the job's store, below the folder of all jobs; "" for a temporary one."""
    token: str = ""
    """The content of the token file at home."""
    executor: str = ""
    """The recorded name of the executor, if each of its ranks trains one replica."""
    resumes: int | None = None
    """The number of the run that its ranks resume; None for a new one."""
    force: bool = False
    """Whether the ranks take over the run even if another process seems to work on it."""

    @classmethod
    def of(
        cls, experiment: Experiment, kind: str, fold: int | None = None, *, label: str = "", scope: str = ""
    ) -> "Job":
        """Return the job that trains an experiment, or one of its folds."""
        dumped = experiment.model_dump(mode="json", exclude_none=True)
        objects = {
            field: [value.value if isinstance(value, PythonObject) else value for value in values]
            for field, values in experiment.named_values.items()
            if any(isinstance(value, PythonObject) for value in values)
        }
        trained = experiment if fold is None else fold_experiment(experiment, "fold")
        device = experiment.machine.device
        needed = trained.parallel.workers * (experiment.machine.threads or 1)
        pickled = _pickled(objects) if objects else b""
        path = tuple(folder for folder in sys.path if Path(folder).is_dir())
        return cls(
            tomli_w.dumps(dumped),
            pickled,
            kind,
            str(Path.cwd()),
            path,
            needed,
            int(device.startswith("cuda")),
            device == "auto",
            fold,
            label=label,
            scope=scope,
        )

    @property
    def key(self) -> str:
        """A digest of the experiment, the data and the versions: jobs with the same key have the same result.

        A job of a run is recognized by the run: the pickle of a class that a script defines is never the same twice.
        """
        parts = (self.experiment, self.kind, str(self.fold), self.scope, __version__, metadata.version("torch"))
        objects = b"" if self.scope.startswith(OF_RUN) else self.objects
        return hashlib.blake2b(json.dumps(parts).encode() + objects, digest_size=10).hexdigest()

    def read_experiment(self) -> Experiment:
        """Return the experiment, unpickling its objects."""
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
    """Train the experiment of a job, and return the bundle of its run or the error message."""
    with _ALONE, _store_of(job) as store, _working_in(job):
        error = ""
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


class RankEnd(NamedTuple):
    """The outcome of one rank of a training."""

    run: int
    """The number of the run, of rank 0."""
    error: str = ""
    lost: bool = False
    """Whether it failed because a rank was lost, so that the ranks can be started again."""


def train_rank(job: Job, runs: str, listen: Emit | None) -> RankEnd:
    """Train one replica of a job's experiment, as the rank that the environment variables describe.

    Only rank 0 has a listener.
    """
    with _working_in(job, hides_rank=False):
        try:
            resolved, hear = resolve(job.read_experiment()), listen or ignore
            with recording_executor(job.executor):
                if job.resumes is None:
                    recorded = resolved.engine.train(
                        resolved, runs=runs, kind=job.kind, stopwatch=Stopwatch(), listen=hear
                    )
                elif listen is None:  # only rank 0 reads what is recorded
                    recorded = resolved.engine.resume(resolved, RemoteStore(runs), {"id": job.resumes}, hear)
                else:
                    store = Store(runs, create=False)
                    begun_by_these = resolved.world is not None and resolved.world.restarts > 0
                    force = job.force or begun_by_these
                    recorded = resolved.engine.resume(resolved, store, store.find(job.resumes), hear, force=force)
        except TenfoldError as error:
            return RankEnd(0, str(error), isinstance(error, WorkerLost))
        except Exception as error:
            return RankEnd(0, describe_error(error))
        return RankEnd(int(recorded.record["id"]))


@contextmanager
def _store_of(job: Job) -> Iterator[Store]:
    """Yield the store that a job trains in: in its folder at home if this machine sees it, else a temporary one."""
    kept = Path(job.kept_in) / STORE
    if job.kept_in and sees(Path(job.kept_in).parent, job.token):
        store = None
        with suppress(StoreError):  # damaged when a machine died: start over
            store = Store(kept)
            if any(run["status"] == "failed" for run in store.runs()):
                store = None
        if store is None:
            shutil.rmtree(kept, ignore_errors=True)
        yield store or Store(kept)
        return
    with tempfile.TemporaryDirectory(prefix="tenfold-job-") as folder:
        yield Store(folder)


def sees(folder: Path, token: str) -> bool:
    """Return whether this machine sees the folder in which home wrote a token."""
    try:
        return read_regular(folder / TOKEN).decode("ascii") == token
    except (OSError, ValueError):
        return False


def _train(job: Job, store: Store) -> None:
    """Train a setting or a fold, continuing from the last checkpoint of an interrupted attempt."""
    experiment, earlier = job.read_experiment(), next(iter(store.runs()), None)
    if earlier is not None and earlier["status"] == "finished":  # home was lost before it came back
        return
    listen = _follower(store, experiment.training.epochs, job.stop_behind)
    if earlier is not None:
        store.claim(earlier["id"], force=True)  # of a machine that is gone, or stops before its next write
        store.release(earlier["id"])
    if job.fold is not None:
        _train_fold(experiment, job, store, listen, earlier["id"] if earlier else None)
        return
    resolved = resolve(experiment)
    if earlier is not None:
        resolved.engine.resume(resolved, store, store.find(earlier["id"]), listen)
        return
    resolved.engine.train(resolved, runs=store.folder, kind=job.kind, stopwatch=Stopwatch(), listen=listen)


def _follower(store: Store, epochs: int, stop_behind: StopBehind | None) -> Emit:
    """Return a listener that periodically writes a job's progress to a file in its store, and may stop the job."""
    listen = Callbacks(ignore, [stop_behind]) if stop_behind else ignore
    state: dict[str, Any] = {"host": socket.gethostname(), "began": time.time(), "step": 0, "steps": 0}
    written = 0.0

    def write() -> None:
        nonlocal written
        written = time.monotonic()
        with suppress(OSError), unsynced():
            write_atomically(store.folder / PROGRESS, json.dumps(state).encode())

    def hear(event: Event) -> None:
        if isinstance(event, Started):
            state["steps"] = event.steps_per_epoch * epochs
            write()
        elif isinstance(event, Metric):
            state["step"] = max(state["step"], event.step)
            if time.monotonic() - written > PROGRESS_SECONDS:
                write()
        listen(event)

    return hear


def _train_fold(experiment: Experiment, job: Job, store: Store, listen: Emit, earlier: int | None) -> None:
    """Train one fold of a cross-validation; raise TenfoldError if it fails."""
    stopwatch = Stopwatch()
    if not FoldMode.of(experiment).shares_folds:  # the other workers, and their cores, are not here
        experiment = experiment.replace(oversubscribe=True)
    with shared_data(Resolved.of(experiment)) as task:
        split = make_fold_splits(task)[job.fold or 0]
        stored = Experiment(**experiment.model_dump(mode="json"))
        context = FoldContext(stored, store, 0, describe(task), stopwatch)
        threads = (
            task.threads
            if FoldMode.of(experiment).one_by_one
            else cores.share(job.cores, 1, experiment.machine.threads)
        )
        placed = FoldJob(job.fold or 0, split, threads=threads, cores=tuple(range(job.cores)), run=earlier)
        engine = make_engine(resolve_fold(experiment, split))
        with cores.using_threads(threads):
            end = train_fold(engine.run, replace(task, threads=threads), context, placed, listen)
    if end.result is None:
        raise TenfoldError(end.error)


def _check_processes(job: Job) -> None:
    """Raise MachineError if this process may not start the worker processes that the experiment needs."""
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
def _working_in(job: Job, *, hides_rank: bool = True) -> Iterator[None]:
    """Use home's working folder and module search path, if this machine has these folders.

    Hide a launcher that started the worker, such as srun, because a job is not a rank.
    """
    hidden = [launcher.rank for launcher in LAUNCHERS] if hides_rank else []
    before, variables = Path.cwd(), {name: os.environ.pop(name) for name in hidden if name in os.environ}
    sys.path += [folder for folder in job.path if folder not in sys.path and Path(folder).is_dir()]
    if Path(job.folder).is_dir():
        os.chdir(job.folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.update(variables)
