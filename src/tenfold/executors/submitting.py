"""Submit jobs to an executor, resubmit them if their worker died, and return their outcomes.

This module also creates executors from the pools of other packages, given the cores of the largest job.
"""

import inspect
import json
import math
import multiprocessing
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tenfold.common.files import make_private, read_regular, short_path, write_atomically
from tenfold.common.imports import optional_module, user_frames
from tenfold.engines.prepare import ignore
from tenfold.errors import ExperimentError, MachineError, StoreError, TenfoldError
from tenfold.executors import slurm
from tenfold.executors.jobs import FOLDER, OF_RUN, PROGRESS, STORE, TOKEN, Job, JobEnd, run_job
from tenfold.experiment import Experiment
from tenfold.experiment.values import PythonObject, format_value, member_of
from tenfold.machine import cores
from tenfold.registry import EXECUTORS, suggest
from tenfold.runs.events import Emit, JobsChanged, JobState, Note, Stopwatch
from tenfold.workers import fork_server

LOCAL = "local"
NOTICED_SECONDS = 0.5
"""If an executor takes longer to start, the user is told."""
ATTEMPTS = 3
"""Maximum number of times a job is submitted if its worker dies."""
MACHINE_ATTEMPTS = 10
"""The same if the whole machine dies, which is not the job's fault."""
WATCH_SECONDS = 1.0
"""Interval at which the states of jobs are checked."""
IDLE_SECONDS = 30.0
"""If no job begins within this time, the user is told."""
LONGEST_TOKEN = 100
Factory = Callable[[int], Executor]
Asked = str | Executor | Callable[[int], Executor]
"""Values of `on`: "local", the name of an executor, an import path, an executor, or a function that creates one."""


def executor_named(on: "Asked | Submitter", **options: str) -> "Submitter | None":
    """Return an object that submits jobs to the requested executor; None for "local".

    Non-empty `options`, such as partition="cpu", are passed to an executor given by name.
    """
    options = {name: value for name, value in options.items() if value}
    if isinstance(on, Submitter):
        return on
    if isinstance(on, str) and on == LOCAL:
        _check_options(on, (), options)
        return None
    names = (LOCAL, *EXECUTORS)
    if isinstance(on, str) and ":" not in on and on not in names:
        raise ExperimentError(f"unknown executor '{on}'; {suggest(on, names)}")
    member = on if isinstance(on, Executor) else member_of(EXECUTORS, on if isinstance(on, str) else PythonObject(on))
    if isinstance(member, Executor):
        _refuse_threads(member)
        return Submitter(getattr(member, "name", type(member).__name__), None, member)
    if callable(member) and not inspect.isabstract(member):
        name = on if isinstance(on, str) else PythonObject(on).name
        _check_options(name, inspect.signature(member).parameters if options else (), options)
        return Submitter(name, partial(member, **options) if options else member)
    listed = ", ".join(names)
    raise ExperimentError(f"on = {format_value(on)}: should be one of {listed}, or a concurrent.futures.Executor")


def _refuse_threads(executor: Executor) -> None:
    if isinstance(executor, ThreadPoolExecutor):
        raise ExperimentError(
            "on=ThreadPoolExecutor(...) would train in this process, one job at a time; give a ProcessPoolExecutor "
            'with mp_context=multiprocessing.get_context("spawn"), or "local"'
        )


def recorded_executor(metadata: Mapping[str, Any]) -> str:
    """Return the name of the executor of a run; "local" if there was none or it has no name."""
    name = metadata.get("executor", LOCAL)
    return name if name in EXECUTORS else LOCAL


def _check_options(name: str, accepted: Iterable[str], options: Iterable[str]) -> None:
    if wrong := [option for option in options if option not in accepted]:
        others = "slurm or ray" if wrong[0] == "mem" else "slurm"
        raise ExperimentError(f"--{wrong[0]} cannot be used with --on {name}; it is for --on {others}")


def follow_jobs(submitter: "Submitter", listen: Emit, stopwatch: Stopwatch) -> None:
    """Send a listener the notes of an executor and, every second, the states of its jobs."""
    submitter.notify = lambda text: listen(Note(at=stopwatch.now(), text=text))
    submitter.watch = lambda jobs: listen(JobsChanged(at=stopwatch.now(), jobs=jobs))


@dataclass
class _Queue:
    """The jobs of one call of `run` by position, and the order in which to submit them."""

    coming: Iterator[Job]
    at_once: int
    jobs: list[Job] = field(default_factory=list)
    """The jobs read so far."""
    attempts: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    """Positions of jobs whose machine was lost."""
    suspects: list[int] = field(default_factory=list)
    """Positions of jobs that were lost together and are now run one at a time."""

    def take_due(self, under_way: int, placed: Callable[[Job], Job]) -> list[int]:
        """Return the positions of the jobs to submit now, given the number of unfinished ones."""
        free = max(0, self.at_once - under_way - len(self.again))
        due, self.again = self.again, []
        for job in islice(self.coming, free):
            due.append(len(self.jobs))
            self.jobs.append(placed(job))
            self.attempts.append(0)
        return due or ([self.suspects.pop(0)] if self.suspects and not under_way else [])

    def clear(self) -> None:
        self.coming, self.again, self.suspects = iter(()), [], []


class Submitter:
    """Submits jobs to an executor while its `with` block lasts.

    An executor passed by the user is left open. An executor from a function is created when the first job is
    submitted, replaced if it breaks, and shut down at the end.
    """

    def __init__(self, name: str, factory: Factory | None, executor: Executor | None = None) -> None:
        self.name = name
        """The metadata that are recorded with the runs."""
        self.notify: Callable[[str], None] = ignore
        """Called with messages for the user before the first run is back."""
        self.watch: Callable[[tuple[JobState, ...]], None] | None = None
        """Called with the states of all jobs, every second."""
        self.left: Any = None
        """The executor whose jobs continue after an interruption; its `cancel_all` stops them."""
        self.folder: Path | None = None
        """The folder with the stores of jobs whose machines see it; see `keep_in`."""
        self._factory, self._executor = factory, executor
        self._futures: dict[Future[Any], int] = {}
        self._queue = _Queue(iter(()), 0)
        """The jobs of `run`."""
        self._noted: set[str] = set()
        """The folders of unfinished jobs."""
        self._depth = 0
        self._token = ""

    def __enter__(self) -> Self:
        if self._depth == 0:
            self.left = None
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        survives = isinstance(error, KeyboardInterrupt) and getattr(self._executor, "survives", False)
        if survives and self._futures:
            self.left = self._executor
        for future in self._futures if self.left is None else ():
            future.cancel()
        if self.left is None:
            self._forget(*self._noted)
        self._futures.clear()
        self._depth -= 1
        if self._depth == 0 and self._factory is not None and self._executor is not None:
            executor, self._executor = self._executor, None
            executor.shutdown(wait=kind is None, cancel_futures=self.left is None)

    def keep_in(self, store_folder: Path) -> None:
        """Keep the jobs' checkpoints in a folder of this run store, so repeated jobs continue from them."""
        self.folder = store_folder / FOLDER
        store_folder.mkdir(parents=True, exist_ok=True)
        make_private(self.folder)  # Slurm's jobs unpickle the files in it
        token = self.folder / TOKEN
        try:
            with suppress(FileExistsError), token.open("x", encoding="ascii") as file:
                file.write(secrets.token_hex(16))
            self._token = read_regular(token, LONGEST_TOKEN).decode("ascii")
        except (OSError, ValueError) as error:
            raise StoreError(f"{short_path(token)} cannot be used: {error}; remove it") from None

    def run(
        self, jobs: Iterable[Job], stopped: Callable[[], bool] = lambda: False, at_once: int | None = None
    ) -> Iterator[tuple[int, JobEnd]]:
        """Yield the position and the outcome of each job as it ends; none begins after `stopped` returns True.

        With `at_once`, a job is read only when fewer than this number are unfinished, so it may depend on the outcomes
        of others. A job whose worker died is submitted again. If the death of a worker breaks the executor, its job is
        unknown, so all jobs lost with it are then run one at a time.
        """
        listed = list(jobs) if at_once is None else []
        self._most_cores = max((job.cores for job in listed), default=1)
        queue = self._queue = _Queue(iter(jobs if at_once is not None else listed), at_once or len(listed))
        self._looked, self._trouble = time.monotonic(), ""
        self._idle_until = self._looked + IDLE_SECONDS
        while True:
            if stopped():
                queue.clear()
                self._futures = {future: place for future, place in self._futures.items() if not future.cancel()}
            due = queue.take_due(len(self._futures), self._placed)
            if not due and not self._futures:
                return
            for place in due:
                if (refused := self._submit(place)) is not None:
                    yield place, refused
            ended, _ = wait(self._futures, timeout=WATCH_SECONDS, return_when=FIRST_COMPLETED)
            for future in ended:
                place = self._futures.pop(future)
                if (end := self._take_back(place, future)) is not None:
                    yield place, end
                    if not future.cancelled() and future.exception() is None:  # else another command may run it again
                        self._remove_folder(queue.jobs[place])  # if `recorded` has not, as there was no run
            self._look()

    def _submit(self, place: int) -> JobEnd | None:
        """Submit a job, possibly again; return its outcome if the executor refuses it."""
        queue = self._queue
        job = queue.jobs[place]
        queue.attempts[place] += 1
        self._most_cores = max(self._most_cores, job.cores)
        if queue.attempts[place] == 1:
            self._note(job)
        try:
            self._futures[self.open(self._most_cores).submit(run_job, job)] = place
        except BrokenExecutor as error:
            return b"", _describe_loss(error, queue.attempts[place], remade=False)
        except TenfoldError:
            raise
        except Exception as error:  # it has been shut down, or whatever an executor raises
            return b"", f"the executor accepts no jobs: {_first_line(error)}"
        return None

    def _take_back(self, place: int, future: "Future[Any]") -> JobEnd | None:
        """Return the outcome of a job; None if its worker or machine was lost and it will be submitted again."""
        end, queue = _end_of(future), self._queue
        attempts = queue.attempts[place]
        if isinstance(end, getattr(self._executor, "machine_losses", ())) and attempts < MACHINE_ATTEMPTS:
            queue.again.append(place)
        elif isinstance(end, BrokenExecutor) and self._renew() and attempts < ATTEMPTS:
            queue.suspects.append(place)
        elif isinstance(end, Exception):
            self._forget(queue.jobs[place].kept_in)
            if not queue.jobs[place].scope:  # no other job has this folder, so nothing continues there
                self._remove_folder(queue.jobs[place])
            return b"", _describe_loss(end, attempts, remade=self._factory is not None)
        else:
            return end
        return None

    def _look(self) -> None:
        """Report why jobs wait, if the executor knows, and periodically the states of all jobs."""
        if (trouble := getattr(self._executor, "trouble", "")) != self._trouble:
            self._trouble = trouble
            if trouble:
                self.notify(trouble)
        now, queue = time.monotonic(), self._queue
        if self.watch is None or now - self._looked <= WATCH_SECONDS:
            return
        self._looked = now
        waiting = {*self._futures.values(), *queue.again, *queue.suspects}
        states = tuple(
            state_of(Path(job.kept_in), job.label) if place in waiting else JobState(job.label, "done", done=1.0)
            for place, job in enumerate(queue.jobs)
        )
        self.watch(states)
        if any(job.state != "waiting" for job in states) or getattr(self._executor, "survives", False):
            self._idle_until = math.inf  # jobs of Slurm may wait for hours
        if now > self._idle_until:
            self._idle_until = math.inf
            self.notify(
                f"{self.name}: no job has started yet; there are no free workers, or they cannot read "
                f"{short_path(self.folder) if self.folder else 'the run store'}"
            )

    def recorded(self, place: int) -> None:
        """Remove the folder of a job whose run is recorded, so no folder remains if home is interrupted."""
        self._forget(self._queue.jobs[place].kept_in)
        self._remove_folder(self._queue.jobs[place])

    def train(
        self,
        experiment: Experiment,
        kind: str,
        runs: Path,
        listen: Emit,
        *,
        resumes: int | None = None,
        force: bool = False,
    ) -> int:
        """Train one experiment with a rank for each worker, or resume its run, and return the number of the run."""
        with self:
            executor = self.open(experiment.parallel.workers)
            if not hasattr(executor, "train"):
                raise ExperimentError(
                    f'on = {self.name}: it trains whole runs as jobs and cannot start the workers of one run; use "ray"'
                )
            self.keep_in(runs)
            job = replace(Job.of(experiment, kind), executor=self.name, resumes=resumes, force=force)
            job = self._placed(job)
            number: int = executor.train(job, runs, listen, self.notify)
        return number

    def measure_delays(self, runs: Path) -> tuple[float, float]:
        """Return the seconds for a first small run, and for a second one when the executor is warm.

        `runs` is the folder of a run store that the executor's machines see; no run is recorded there.
        """
        job = Job.of(Experiment(model="mlp", data="digits", epochs=1, workers=1, threads=1), "train", label="delay")
        delays = []
        with self:
            self.keep_in(runs)
            for _ in range(2):
                began = time.perf_counter()
                for _, (_, error) in self.run([job]):
                    if error:
                        raise MachineError(f"on = {self.name}: a run of mlp on digits failed: {error}")
                delays.append(time.perf_counter() - began)
        return delays[0], delays[1]

    def _placed(self, job: Job) -> Job:
        """Return a job with its folder at home; a job with the same scope and content has the same folder."""
        if self.folder is None:
            return job
        name = job.key if job.scope else secrets.token_hex(10)
        return replace(job, kept_in=str(self.folder / name), token=self._token)

    def _note(self, job: Job) -> None:
        if job.kept_in:
            self._noted.add(job.kept_in)
            note_job(job, self.name)

    def _forget(self, *folders: str) -> None:
        for folder in folders:
            self._noted.discard(folder)
            forget_job(folder)

    @staticmethod
    def _remove_folder(job: Job) -> None:
        if job.kept_in:
            shutil.rmtree(job.kept_in, ignore_errors=True)

    def open(self, job_cores: int) -> Executor:
        """Return the executor, creating it for jobs of this many cores if needed; report a slow start."""
        if self._executor is None:
            assert self._factory is not None
            began = time.perf_counter()
            try:
                made: object = self._factory(job_cores)
            except TenfoldError:
                raise
            except Exception as error:  # no scheduler at its address, no free port, ...
                raise MachineError(
                    f"on = {self.name} cannot be opened: {_first_line(error)}{user_frames(error)}"
                ) from error
            if (seconds := time.perf_counter() - began) > NOTICED_SECONDS:
                self.notify(f"{self.name} is ready after {seconds:.1f} s")
            if not isinstance(made, Executor):
                kind = type(made).__name__
                raise ExperimentError(f"on = {self.name}: should return a concurrent.futures.Executor, not a {kind}")
            _refuse_threads(made)
            self._executor = made
        return self._executor

    def _renew(self) -> bool:
        """Drop a broken executor if another one can be created; return whether it can."""
        if self._factory is None:
            return False
        if self._executor is not None:
            executor, self._executor = self._executor, None
            with suppress(Exception):
                executor.shutdown(wait=False, cancel_futures=True)
        return True


def _end_of(future: "Future[Any]") -> JobEnd | Exception:
    """Return the outcome of a job, or the error that prevented one."""
    try:
        end = future.result()
    except Exception as lost:  # executors define their own errors
        return lost
    match end:
        case (bytes() as bundle, str() as error):
            return bundle, error
    return TypeError("the job returned something other than a bundle")


def _describe_loss(error: Exception, attempts: int, *, remade: bool) -> str:
    if isinstance(error, TenfoldError):
        return str(error)
    often = f" {attempts} times" if attempts > 1 else ""
    hint = "" if remade or not isinstance(error, BrokenExecutor) else "; run it again with a new executor"
    return f"the job was lost{often}: {_first_line(error)}{hint}"


def _first_line(error: Exception) -> str:
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first}"


# The unfinished jobs of a run store, shown by `tenfold runs` and the board.
#
# Each job has a folder in the store. The command that submitted the job writes its description there, the job writes
# its progress, and a job of Slurm also has its job number there.

ABOUT = "about.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUnderWay(JobState):
    """An unfinished job; for a job of Slurm, `state` contains Slurm's own state and job number."""

    run: int | None
    """The sweep or cross-validation that it belongs to; None for a job of a comparison."""
    executor: str


def note_job(job: Job, executor: str) -> None:
    """Write the description of a job, and the process that waits for it, to the folder of the job."""
    about = {"label": job.label, "scope": job.scope, "executor": executor, "host": socket.gethostname()}
    with suppress(OSError, StoreError):  # code that needs the folder reports the error
        folder = Path(job.kept_in)
        make_private(folder)
        process = {"pid": os.getpid(), "began": psutil.Process().create_time()}
        write_atomically(folder / ABOUT, json.dumps(about | process).encode())


def forget_job(folder: str) -> None:
    """Remove the description of a job that is no longer waited for."""
    with suppress(OSError):
        (Path(folder) / ABOUT).unlink()


def state_of(folder: Path, label: str) -> JobState:
    """Return the state of an unfinished job, from the progress that it writes if home sees it."""
    progress = slurm.read_file(folder / STORE / PROGRESS)
    try:
        return JobState(label, "running", str(progress["host"]), progress["step"] / max(1, progress["steps"]))
    except (KeyError, TypeError):
        return JobState(label, "waiting")


def jobs_under_way(store: Path) -> list[JobUnderWay]:
    """Return the unfinished jobs of a run store, grouped by command."""
    folders = [path.parent for path in (store / FOLDER).glob(f"*/{ABOUT}")]
    return sorted(_read(folders), key=lambda job: (job.run or 0, len(job.label), job.label))


def _read(folders: list[Path]) -> Iterator[JobUnderWay]:
    states: dict[str, slurm.Status] = {}
    if any((folder / slurm.ID).exists() for folder in folders):
        with suppress(MachineError):  # no Slurm on this machine
            states = slurm.states_of_jobs()
    for folder in folders:
        about, number = slurm.read_file(folder / ABOUT), slurm.read_file(folder / slurm.ID).get("id", "")
        now = state_of(folder, str(about.get("label", "")))
        state: str = "done" if (folder / slurm.END).exists() else now.state
        if number:
            status = states.get(number, slurm.UNKNOWN)
            if state != "done" and status.state not in slurm.ACTIVE:
                continue
            state = f"{status if status.state else state} ({number})"
        elif not _is_waited_for(about):
            continue
        run = str(about.get("scope", "")).partition(",")[0].removeprefix(OF_RUN)
        number_of_run = int(run) if run.isdecimal() else None
        about = {"run": number_of_run, "executor": str(about.get("executor", ""))}
        yield JobUnderWay(now.label, state, now.node, now.done, **about)


def _is_waited_for(about: dict[str, Any]) -> bool:
    """Return whether the command that submitted a job still runs, as far as this machine can tell."""
    if about.get("host") != socket.gethostname():
        return True
    try:
        return bool(abs(psutil.Process(about["pid"]).create_time() - about["began"]) < 1)
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


class ProcessPool(ProcessPoolExecutor):
    """A pool of processes on this machine, sized to its cores; torch is imported once for all of them."""

    def __init__(self, job_cores: int) -> None:
        fork_server.start_server()
        count, environment = max(1, cores.budget() // job_cores), dict(os.environ)  # the server's may be older
        super().__init__(count, fork_server.context(), initializer=_begin_worker, initargs=(environment,))

    def submit(self, function: Callable[..., Any], /, *rest: Any, **named: Any) -> "Future[Any]":
        """Submit a job; the first jobs start processes, which do not run the user's script again."""
        with fork_server.without_main():
            return super().submit(function, *rest, **named)


def _begin_worker(variables: dict[str, str]) -> None:
    """Set the environment of a pool process, and make it exit when the process that created the pool is gone."""
    os.environ.update(variables)
    home = multiprocessing.parent_process()
    assert home is not None

    def end_with_home() -> None:
        home.join()
        os._exit(1)

    threading.Thread(target=end_with_home, daemon=True, name="tenfold-lifeline").start()


def dask(job_cores: int) -> Executor:
    """Return an executor for the Dask cluster at $DASK_SCHEDULER_ADDRESS, or a new cluster on this machine."""
    config = optional_module("dask", 'on="dask"', "dask").config
    client_class = optional_module("distributed", 'on="dask"', "dask").Client
    if config.get("scheduler-address", None):
        client = client_class()
    else:
        # jobs with several workers start processes, which daemonic ones may not
        with config.set({"distributed.worker.daemon": False}), fork_server.without_main():
            count = max(1, cores.budget() // job_cores)
            client = client_class(n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    executor: Executor = client.get_executor()
    shutdown = executor.shutdown

    def close(wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG001
        shutdown(wait=wait)
        client.close()

    executor.shutdown = close  # type: ignore[method-assign]
    return executor
