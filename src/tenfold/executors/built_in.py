"""The executors that can be chosen by name: functions of the cores that the largest job needs."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

from tenfold.common.imports import optional_module
from tenfold.machine import cores
from tenfold.workers import fork_server


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
