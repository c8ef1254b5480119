"""The executors that can be chosen by name: functions of the cores that the largest job needs."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from tenfold.common.imports import optional_module
from tenfold.executors.jobs import Job
from tenfold.machine import cores

RETRIES = 2
"""How often Ray runs a job again whose worker or node died."""


def processes(job_cores: int) -> Executor:
    """Return a pool of new processes on this machine, as many as jobs fit on its cores."""
    count = max(1, cores.budget() // job_cores)
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


def dask(job_cores: int) -> Executor:
    """Return an executor of the Dask cluster that $DASK_SCHEDULER_ADDRESS names, else of a new one on this machine."""
    config = optional_module("dask", 'on="dask"', "dask").config
    client_class = optional_module("distributed", 'on="dask"', "dask").Client
    if config.get("scheduler-address", None):
        client = client_class()
    else:
        # jobs with several workers start processes, which daemonic ones may not
        with config.set({"distributed.worker.daemon": False}):
            count = max(1, cores.budget() // job_cores)
            client = client_class(n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    executor: Executor = client.get_executor()
    shutdown = executor.shutdown

    def close(wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG001
        shutdown(wait=wait)
        client.close()

    executor.shutdown = close  # type: ignore[method-assign]
    return executor


class RayExecutor(Executor):
    """Runs each job as a task of the Ray cluster that $RAY_ADDRESS names, else of a new Ray on this machine."""

    def __init__(self, _job_cores: int) -> None:
        self._ray = optional_module("ray", 'on="ray"', "ray")
        self._starts = not self._ray.is_initialized()
        self._is_own = self._starts and not os.environ.get("RAY_ADDRESS")
        if self._starts:
            self._ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
        self._objects: dict[bytes, Any] = {}

    def submit(self, function: Callable[..., Any], /, job: Job, *rest: Any) -> "Future[Any]":  # type: ignore[override]
        """Run a job on as many cores and GPUs as it needs; its Python objects are stored once for all jobs."""
        if job.objects not in self._objects:
            self._objects[job.objects] = self._ray.put(job.objects)
        # a Ray of this machine alone would wait forever for cores that it does not have
        count = min(job.cores, int(self._ray.cluster_resources().get("CPU", 1))) if self._is_own else job.cores
        task = self._ray.remote(num_cpus=count, num_gpus=job.gpus, max_retries=RETRIES)(_with_objects)
        small = replace(job, objects=b"")
        future: Future[Any] = task.remote(function, small, self._objects[job.objects], *rest).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop a Ray that was started here, or leave the cluster that was joined here."""
        if self._starts:
            self._ray.shutdown()


def _with_objects(function: Callable[..., Any], job: Job, objects: bytes, *rest: Any) -> Any:
    return function(replace(job, objects=objects), *rest)
