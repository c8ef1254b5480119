"""Executors run whole runs as jobs: processes, Dask, Ray, Slurm, or any `concurrent.futures.Executor`."""

from tenfold.executors.slurm import Slurm
from tenfold.executors.submitting import Submitter, executor_named

__all__ = ["Slurm", "Submitter", "executor_named"]
