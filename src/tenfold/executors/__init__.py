"""Executors: where whole runs go as jobs: processes, Dask, Ray, any `concurrent.futures.Executor`."""

from tenfold.executors.jobs import Job, JobEnd
from tenfold.executors.submitting import Submitter, executor_named

__all__ = ["Job", "JobEnd", "Submitter", "executor_named"]
