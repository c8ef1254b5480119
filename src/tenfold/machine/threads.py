"""How many threads each worker computes with: threads x workers = cores, never more."""

import os

from tenfold.errors import MachineError

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def share(budget: int, workers: int, threads: int | None = None, *, oversubscribe: bool = False) -> int:
    """Threads for each worker: those asked for, or an equal share of the budget of cores, max(1, budget // workers)."""
    if workers < 1:
        raise MachineError(f"cannot share {budget} cores among {workers} workers; there must be at least 1")
    if threads is None:
        return max(1, budget // workers)
    if threads < 1:
        raise MachineError(f"cannot give each worker {threads} threads; there must be at least 1")
    if workers * threads > budget and not oversubscribe:
        raise MachineError(
            f"{workers} workers x {threads} threads need {workers * threads} cores, but this process may use {budget}; "
            f"{_what_fits(budget, workers)}, or set oversubscribe to true"
        )
    return threads


def environment(threads: int) -> dict[str, str]:
    """The variables that make the libraries of a child process start `threads` threads and no more."""
    return dict.fromkeys(_VARIABLES, str(threads))


def apply(threads: int) -> None:
    """Compute with `threads` threads in this process, and in the children it starts from now on."""
    import torch

    os.environ.update(environment(threads))
    torch.set_num_threads(threads)


def _what_fits(budget: int, workers: int) -> str:
    if workers > budget:
        return f"use at most {budget} workers of 1 thread"
    return f"use at most {budget // workers} threads each"
