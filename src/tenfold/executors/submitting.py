"""Jobs are submitted to an executor, submitted again where their worker died, and their ends handed back.

Here are also the executors that are made of other packages' pools: functions of the cores that the largest job needs.
"""

import inspect
import multiprocessing
import os
import secrets
import shutil
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
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tenfold.common.files import make_private, read_regular, short_path
from tenfold.common.imports import optional_module, user_frames
from tenfold.engines.resolve_experiment import ignore
from tenfold.errors import ExperimentError, MachineError, StoreError, TenfoldError
from tenfold.executors.jobs import FOLDER, TOKEN, Job, JobEnd, run_job
from tenfold.executors.under_way import forget_job, note_job, state_of
from tenfold.experiment import Experiment
from tenfold.experiment.values import PythonObject, format_value, member_of
from tenfold.machine import cores
from tenfold.registry import EXECUTORS, suggest
from tenfold.runs import Emit, JobsChanged, JobState, Note, Stopwatch
from tenfold.workers import fork_server

LOCAL = "local"
NOTICED_SECONDS = 0.5
"""If an executor takes longer to start, that is said."""
ATTEMPTS = 3
"""How often a job is submitted at most, if its worker dies."""
MACHINE_ATTEMPTS = 10
"""How often, if the machine dies and takes the worker with it, which is not the job's fault."""
WATCH_SECONDS = 1.0
"""How often the states of jobs are looked at."""
IDLE_SECONDS = 30.0
"""If no job is seen to begin within this time, that is said."""
LONGEST_TOKEN = 100
Factory = Callable[[int], Executor]
Asked = str | Executor | Callable[[int], Executor]
"""What `on` takes: "local", the name of an executor, an import path, an executor, or a function that makes one."""


def executor_named(on: "Asked | Submitter", **options: str) -> "Submitter | None":
    """Return an object that submits jobs to the requested executor; None for "local".

    `options` are passed on to an executor with a name, those that are not empty: partition="cpu".
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
    """Return the name of the executor that made a run; "local" if none did, or one without a name."""
    name = metadata.get("executor", LOCAL)
    return name if name in EXECUTORS else LOCAL


def _check_options(name: str, taken: Iterable[str], options: Iterable[str]) -> None:
    if wrong := [option for option in options if option not in taken]:
        others = "slurm or ray" if wrong[0] == "mem" else "slurm"
        raise ExperimentError(f"--{wrong[0]} has no meaning with --on {name}; it is for --on {others}")


def follow_jobs(submitter: "Submitter", listen: Emit, stopwatch: Stopwatch) -> None:
    """Give a listener the notes of an executor, and every second the states of its jobs."""
    submitter.notify = lambda text: listen(Note(at=stopwatch.now(), text=text))
    submitter.watch = lambda jobs: listen(JobsChanged(at=stopwatch.now(), jobs=jobs))


class Submitter:
    """Submits jobs to an executor while its `with` block lasts.

    An executor that it was given is left open; one that a function makes is made when the first job is submitted, made
    again if it breaks, and shut down at the end.
    """

    def __init__(self, name: str, factory: Factory | None, executor: Executor | None = None) -> None:
        self.name = name
        """The metadata that are recorded with the runs."""
        self.notify: Callable[[str], None] = ignore
        """Called with what there is to say before the first run is back."""
        self.watch: Callable[[tuple[JobState, ...]], None] | None = None
        """Called with the states of all jobs, every second."""
        self.left: Any = None
        """The executor whose jobs continue after an interruption; its `cancel_all` stops them."""
        self.folder: Path | None = None
        """Where jobs have stores of their own, if their machine sees it; see `keep_in`."""
        self._factory, self._executor = factory, executor
        self._futures: dict[Future[Any], int] = {}
        self._jobs: list[Job] = []
        """The jobs that were submitted by `run`, by position."""
        self._noted: set[str] = set()
        """The folders of the jobs that have not come back."""
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
        """Let jobs keep their checkpoints in a folder of this run store, so that they continue if they run again."""
        self.folder = store_folder / FOLDER
        store_folder.mkdir(parents=True, exist_ok=True)
        make_private(self.folder)  # Slurm's jobs unpickle what is in there
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
        """Yield the position and the end of each job as it ends; none begins after `stopped` returns True.

        With `at_once`, a job is read only when fewer than these are under way, so that it may depend on how others
        ended. A job whose worker died is submitted again. Where the death of one breaks the executor, nobody knows
        whose it was, so the jobs that were lost with it are then run one at a time.
        """
        listed = list(jobs) if at_once is None else []
        coming = iter(jobs if at_once is not None else listed)
        most = max((job.cores for job in listed), default=1)
        begun = self._jobs = []
        attempts: list[int] = []
        again: list[int] = []
        suspects: list[int] = []
        looked, trouble = time.monotonic(), ""
        idle_until = looked + IDLE_SECONDS
        while True:
            if stopped():
                coming, again, suspects = iter(()), [], []
                for future in list(self._futures):
                    if future.cancel():
                        del self._futures[future]
            free = len(listed) if at_once is None else max(0, at_once - len(self._futures) - len(again))
            new = [self._placed(job) for job in islice(coming, free)]
            due, again = [*again, *range(len(begun), len(begun) + len(new))], []
            for job in new:
                self._note(job)
            begun += new
            attempts += [0] * len(new)
            if not due and not self._futures:
                if not suspects:
                    return
                due = [suspects.pop(0)]
            for place in due:
                attempts[place] += 1
                most = max(most, begun[place].cores)
                try:
                    self._futures[self.open(most).submit(run_job, begun[place])] = place
                except BrokenExecutor as error:
                    yield place, (b"", _describe_loss(error, attempts[place], remade=False))
                except TenfoldError:
                    raise
                except Exception as error:  # it has been shut down, or whatever an executor raises
                    yield place, (b"", f"the executor takes no job: {_first_line(error)}")
            if not self._futures:
                continue
            ended, _ = wait(self._futures, timeout=WATCH_SECONDS, return_when=FIRST_COMPLETED)
            for future in ended:
                place = self._futures.pop(future)
                end = _end_of(future)
                if isinstance(end, self._machine_losses) and attempts[place] < MACHINE_ATTEMPTS:
                    again.append(place)
                elif isinstance(end, BrokenExecutor) and self._renew() and attempts[place] < ATTEMPTS:
                    suspects.append(place)
                elif isinstance(end, Exception):
                    self._forget(begun[place].kept_in)
                    yield place, (b"", _describe_loss(end, attempts[place], remade=self._factory is not None))
                    if not begun[place].scope:  # no other job has this folder, so nothing continues there
                        self._remove_folder(begun[place])
                else:
                    yield place, end
                    self._remove_folder(begun[place])  # if `recorded` has not, as there was no run
            if (said := getattr(self._executor, "trouble", "")) != trouble:
                trouble = said
                if said:
                    self.notify(said)
            if self.watch is not None and time.monotonic() - looked > WATCH_SECONDS:
                looked = time.monotonic()
                waiting = {*self._futures.values(), *again, *suspects}
                states = tuple(
                    state_of(Path(job.kept_in), job.label)
                    if place in waiting
                    else JobState(job.label, "done", done=1.0)
                    for place, job in enumerate(begun)
                )
                self.watch(states)
                if any(job.state != "waiting" for job in states) or getattr(self._executor, "survives", False):
                    idle_until = float("inf")  # jobs of Slurm may wait for hours
                if looked > idle_until:
                    idle_until = float("inf")
                    self.notify(
                        f"{self.name}: no job has been seen to begin yet; it has no free workers, or they do not see "
                        f"{short_path(self.folder) if self.folder else 'the run store'}"
                    )

    def recorded(self, place: int) -> None:
        """Remove the folder of a job whose run is recorded at home, so that nothing is left if home is interrupted."""
        self._forget(self._jobs[place].kept_in)
        self._remove_folder(self._jobs[place])

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
                    f'on = {self.name}: it trains whole runs as jobs, not the workers of one; use "ray"'
                )
            self.keep_in(runs)
            job = replace(Job.of(experiment, kind), executor=self.name, resumes=resumes, force=force)
            job = self._placed(job)
            number: int = executor.train(job, runs, listen, self.notify)
        return number

    def measure_delays(self, runs: Path) -> tuple[float, float]:
        """Return the seconds until a first small run is back, and those for another one, when the executor is warm.

        `runs` is the folder of a run store that the executor's machines see; nothing is recorded there.
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

    @property
    def _machine_losses(self) -> tuple[type[Exception], ...]:
        losses: tuple[type[Exception], ...] = getattr(self._executor, "machine_losses", ())
        return losses

    def open(self, job_cores: int) -> Executor:
        """Return the executor, made for jobs of so many cores unless there is one; this says how long it took."""
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
                raise ExperimentError(f"on = {self.name}: should make a concurrent.futures.Executor, not a {kind}")
            _refuse_threads(made)
            self._executor = made
        return self._executor

    def _renew(self) -> bool:
        """Forget an executor that is broken, if another one can be made, and return whether it can."""
        if self._factory is None:
            return False
        if self._executor is not None:
            executor, self._executor = self._executor, None
            with suppress(Exception):
                executor.shutdown(wait=False, cancel_futures=True)
        return True


def _end_of(future: "Future[Any]") -> JobEnd | Exception:
    """Return the end of a job, or why there is none."""
    try:
        end = future.result()
    except Exception as lost:  # executors have errors of their own
        return lost
    match end:
        case (bytes() as bundle, str() as error):
            return bundle, error
    return TypeError("the job returned something else than a bundle")


def _describe_loss(error: Exception, attempts: int, *, remade: bool) -> str:
    if isinstance(error, TenfoldError):
        return str(error)
    often = f" {attempts} times" if attempts > 1 else ""
    hint = "" if remade or not isinstance(error, BrokenExecutor) else "; run it again with a new executor"
    return f"the job was lost{often}: {_first_line(error)}{hint}"


def _first_line(error: Exception) -> str:
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first}"


class ProcessPool(ProcessPoolExecutor):
    """A pool of processes on this machine, as many as jobs fit on its cores; torch is imported once for all."""

    def __init__(self, job_cores: int) -> None:
        fork_server.start_server()
        count, environment = max(1, cores.budget() // job_cores), dict(os.environ)  # the server's may be older
        super().__init__(count, fork_server.context(), initializer=_begin_worker, initargs=(environment,))

    def submit(self, function: Callable[..., Any], /, *rest: Any, **named: Any) -> "Future[Any]":
        """Submit a job; the first ones start processes, in which the user's script is not run again."""
        with fork_server.without_main():
            return super().submit(function, *rest, **named)


def _begin_worker(variables: dict[str, str]) -> None:
    """In a process of the pool: take over the environment, and end when the process that made the pool is gone."""
    os.environ.update(variables)
    home = multiprocessing.parent_process()
    assert home is not None

    def end_with_home() -> None:
        home.join()
        os._exit(1)

    threading.Thread(target=end_with_home, daemon=True, name="tenfold-lifeline").start()


def dask(job_cores: int) -> Executor:
    """Return an executor of the Dask cluster that $DASK_SCHEDULER_ADDRESS names, else of a new one on this machine."""
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
