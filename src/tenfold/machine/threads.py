"""How many threads each worker computes with: threads x workers = cores, never more."""

from tenfold.errors import MachineError


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


def _what_fits(budget: int, workers: int) -> str:
    if workers > budget:
        return f"use at most {budget} workers of 1 thread"
    return f"use at most {budget // workers} threads each"
