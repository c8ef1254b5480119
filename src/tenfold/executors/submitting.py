"""Jobs are submitted to an executor, submitted again where their worker died, and their ends handed back."""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from tenfold.common.catalog import EXECUTORS
from tenfold.engines.choose import ignore
from tenfold.errors import ExperimentError
from tenfold.executors.jobs import Job, JobEnd, run_job
from tenfold.experiment.values import PythonObject, format_value, member_of

LOCAL = "local"
NOTICED_SECONDS = 0.5
"""If an executor takes longer to start, that is said."""
ATTEMPTS = 3
"""How often a job is submitted at most, if its worker dies."""
Factory = Callable[[int], Executor]
Asked = str | Executor | Callable[[int], Executor]
"""What `on` takes: "local", the name of an executor, an import path, an executor, or a function that makes one."""


def executor_named(on: "Asked | Submitter") -> "Submitter | None":
    """Return what submits jobs to the executor that was asked for; None for "local"."""
    if isinstance(on, Submitter):
        return on
    if isinstance(on, str) and on == LOCAL:
        return None
    member = on if isinstance(on, Executor) else member_of(EXECUTORS, on if isinstance(on, str) else PythonObject(on))
    if isinstance(member, ThreadPoolExecutor):
        raise ExperimentError(
            "on=ThreadPoolExecutor(...) would train in this process, one job at a time; give a ProcessPoolExecutor "
            'with mp_context=multiprocessing.get_context("spawn"), or "local"'
        )
    if isinstance(member, Executor):
        return Submitter(type(member).__name__, None, member)
    if callable(member) and not inspect.isabstract(member):
        return Submitter(on if isinstance(on, str) else PythonObject(on).name, member)
    known = ", ".join((LOCAL, *EXECUTORS))
    raise ExperimentError(f"on = {format_value(on)}: should be one of {known}, or a concurrent.futures.Executor")


class Submitter:
    """Submits jobs to an executor while its `with` block lasts.

    An executor that it was given is left open; one that a function makes is made when the first job is submitted, made
    again if it breaks, and shut down at the end.
    """

    def __init__(self, name: str, factory: Factory | None, executor: Executor | None = None) -> None:
        self.name = name
        """What is recorded with the runs."""
        self.notify: Callable[[str], None] = ignore
        """Called with what there is to say before the first run is back."""
        self._factory, self._executor = factory, executor
        self._futures: dict[Future[Any], int] = {}
        self._depth = 0

    def __enter__(self) -> Self:
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for future in self._futures:
            future.cancel()
        self._futures.clear()
        self._depth -= 1
        if self._depth == 0 and self._factory is not None and self._executor is not None:
            executor, self._executor = self._executor, None
            executor.shutdown(wait=kind is None, cancel_futures=True)

    def run(self, jobs: Sequence[Job], stopped: Callable[[], bool] = lambda: False) -> Iterator[tuple[int, JobEnd]]:
        """Yield the position and the end of each job as it ends; none begins after `stopped` returns True.

        A job whose worker died is submitted again. Where the death of one breaks the executor, nobody knows whose it
        was, so the jobs that were lost with it are then run one at a time.
        """
        attempts = dict.fromkeys(range(len(jobs)), 0)
        suspects: list[int] = []
        most = max((job.cores for job in jobs), default=1)
        waiting = list(attempts)
        while waiting or suspects or self._futures:
            if stopped():
                waiting, suspects = [], []
                for future in list(self._futures):
                    if future.cancel():
                        del self._futures[future]
            due, waiting = waiting, []
            if not due and not self._futures and suspects:
                due = [suspects.pop(0)]
            for place in due:
                attempts[place] += 1
                try:
                    self._futures[self._open(most).submit(run_job, jobs[place])] = place
                except BrokenExecutor as error:
                    yield place, (b"", _describe_loss(error, attempts[place], remade=False))
                except RuntimeError as error:  # it has been shut down
                    yield place, (b"", f"the executor takes no job: {error}")
            if not self._futures:
                continue
            ended, _ = wait(self._futures, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in ended:
                place = self._futures.pop(future)
                end = _end_of(future)
                if isinstance(end, BrokenExecutor) and self._renew() and attempts[place] < ATTEMPTS:
                    suspects.append(place)
                elif isinstance(end, Exception):
                    yield place, (b"", _describe_loss(end, attempts[place], remade=self._factory is not None))
                else:
                    yield place, end

    def _open(self, job_cores: int) -> Executor:
        if self._executor is None:
            assert self._factory is not None
            began = time.perf_counter()
            made: object = self._factory(job_cores)
            if (seconds := time.perf_counter() - began) > NOTICED_SECONDS:
                self.notify(f"{self.name} started in {seconds:.1f} s")
            if not isinstance(made, Executor):
                kind = type(made).__name__
                raise ExperimentError(f"on = {self.name}: should make a concurrent.futures.Executor, not a {kind}")
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
        bundle, error = future.result()
    except Exception as lost:  # executors have errors of their own
        return lost
    if not isinstance(bundle, bytes) or not isinstance(error, str):
        return TypeError("the job returned something else than a bundle")
    return bundle, error


def _describe_loss(error: Exception, attempts: int, *, remade: bool) -> str:
    first = (str(error) or type(error).__name__).strip().splitlines()[0]
    often = f" {attempts} times" if attempts > 1 else ""
    hint = "" if remade or not isinstance(error, BrokenExecutor) else "; run it again with a new executor"
    return f"the job was lost{often}: {type(error).__name__}: {first}{hint}"
