"""Which cpus each worker runs on: planning it, and pinning processes."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tenfold.common.registry import Registry
from tenfold.errors import MachineError
from tenfold.machine.cores import Cpu, Topology, parse_cpus, write_cpus

Order = Callable[[Topology, int], tuple[int, ...]]
"""Returns all cpus in the order in which workers take them, given the number of threads of each worker."""


@dataclass(frozen=True, slots=True)
class CoreMap:
    """The cpus of each pinned worker, and a note on anything a user should know about them."""

    policy: str
    workers: tuple[tuple[int, ...], ...]
    note: str = ""

    def cpus(self, worker: int) -> tuple[int, ...]:
        """The cpus of a worker; none where it is not pinned."""
        return self.workers[worker] if worker < len(self.workers) else ()


NOT_PINNED = CoreMap("none", ())
"""The map of any number of workers that are not pinned."""


def compact(topology: Topology, threads: int) -> tuple[int, ...]:  # noqa: ARG001 - every order is asked alike
    """Neighbours first: the SMT siblings of a core, then the cores of a NUMA node, then the next node."""
    return tuple(cpu.number for cpu in sorted(topology.cpus, key=lambda cpu: (*_place(cpu), cpu.siblings, cpu.number)))


def scatter(topology: Topology, threads: int) -> tuple[int, ...]:
    """Far apart: physical cores before SMT siblings, workers distributed round robin to packages and NUMA nodes.

    The cpus of one worker stay within a node as long as a node has enough of them left.
    """
    free = _free_by_place(topology)
    turns = dict.fromkeys(free, 0)

    def cost(place: tuple[int, int]) -> tuple[bool, int, int]:
        siblings = sum(rank > 0 for rank, _ in free[place][:threads])
        return len(free[place]) < threads, siblings, turns[place]

    order: list[int] = []
    while any(free.values()):
        place = min((place for place in free if free[place]), key=cost)
        turns[place] += 1
        order.extend(number for _, number in free[place][:threads])
        del free[place][:threads]
    return tuple(order)


def none(topology: Topology, threads: int) -> tuple[int, ...]:  # noqa: ARG001 - every order is asked alike
    """No pinning: the system's scheduler decides."""
    return ()


PINNING: Registry[Order] = Registry("pin", {"compact": compact, "scatter": scatter, "none": none}, error=MachineError)


def plan(topology: Topology, workers: int, threads: int, policy: str) -> CoreMap:
    """Give each of `workers` the cpus for its `threads`, by the name of a policy or a list of cpus such as "0-3,8".

    No two workers share a cpu unless there are fewer cpus than threads in all; then the note says so. Cpus from a list
    are never shared: a list that is short of threads gives each worker fewer cpus.
    """
    if workers < 1 or threads < 1:
        raise MachineError(f"cannot place {workers} workers of {threads} threads; both must be at least 1")
    if policy[:1].isdigit():
        return _from_list(topology, workers, threads, policy)
    try:
        order = PINNING[policy](topology, threads)
    except MachineError as error:
        raise MachineError(f"{error}, or a list of cpus such as '0-3,8'") from None
    if not order:
        return NOT_PINNED
    taken = [
        [order[(worker * threads + thread) % len(order)] for thread in range(threads)] for worker in range(workers)
    ]
    note = f"{workers} workers x {threads} threads share {len(order)} cpus" if workers * threads > len(order) else ""
    return CoreMap(policy, tuple(tuple(dict.fromkeys(cpus)) for cpus in taken), note)


def cpu_count_of(policy: str, otherwise: int) -> int:
    """Return the number of cpus that a list such as "0-3,8" names, at least 1; for a policy, return `otherwise`."""
    try:
        return max(1, len(set(parse_cpus(policy)))) if policy[:1].isdigit() else otherwise
    except ValueError:  # `plan` says what is wrong with the list
        return otherwise


def apply(cpus: tuple[int, ...]) -> str | None:
    """Pin this process, with all its threads, to `cpus` (none: do nothing); return a sentence if the system cannot."""
    if not cpus:
        return None
    try:
        if hasattr(os, "sched_setaffinity"):
            _pin_threads(cpus)
        elif hasattr(psutil.Process, "cpu_affinity"):
            psutil.Process().cpu_affinity(list(cpus))
        else:
            return "workers are not pinned: this system has no way to pin a process; set pin to 'none'"
    except (OSError, psutil.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"workers are not pinned: the system refused cpus {write_cpus(cpus)} ({reason}); set pin to 'none'"
    return None


@contextlib.contextmanager
def pinned(cpus: tuple[int, ...]) -> Iterator[str | None]:
    """Pin this process while the block lasts; yield a sentence if the system cannot."""
    before = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    try:
        yield apply(cpus)
    finally:
        if cpus:
            apply(before)


def _from_list(topology: Topology, workers: int, threads: int, text: str) -> CoreMap:
    try:
        cpus = parse_cpus(text)
    except ValueError:
        raise MachineError(f"cannot read the cpu list '{text}'; write numbers and ranges such as '0-3,8'") from None
    if twice := sorted({cpu for cpu in cpus if cpus.count(cpu) > 1}):
        raise MachineError(f"the cpu list '{text}' names {write_cpus(twice)} more than once; name each cpu once")
    if missing := sorted(set(cpus) - set(topology.numbers)):
        available = write_cpus(topology.numbers)
        raise MachineError(f"the cpu list '{text}' names {write_cpus(missing)}; this process may use {available}")
    if len(cpus) < workers:
        raise MachineError(f"the cpu list '{text}' has {len(cpus)} cpus for {workers} workers; name at least {workers}")
    each = min(threads, len(cpus) // workers)
    note = f"each worker's {threads} threads share {each} of the cpus listed" if each < threads else ""
    return CoreMap(text, tuple(cpus[worker * each : (worker + 1) * each] for worker in range(workers)), note)


def _place(cpu: Cpu) -> tuple[int, int]:
    return cpu.package, cpu.node


def _free_by_place(topology: Topology) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """For each place its cpus as (rank among the SMT siblings of its core, number), first ranks first.

    Places come in turns of packages: the first node of each package, then the second of each.
    """
    free: dict[tuple[int, int], list[tuple[int, int]]] = {}
    seen: dict[tuple[int, ...], int] = {}
    for cpu in topology.cpus:
        rank = seen[cpu.siblings] = seen.get(cpu.siblings, -1) + 1
        free.setdefault(_place(cpu), []).append((rank, cpu.number))
    nodes: dict[int, list[int]] = {}
    for package, node in sorted(free):
        nodes.setdefault(package, []).append(node)
    turns = sorted(free, key=lambda place: (nodes[place[0]].index(place[1]), place))
    return {place: sorted(free[place]) for place in turns}


def _pin_threads(cpus: tuple[int, ...]) -> None:
    """Pin every thread: Linux pins one at a time, new threads inherit, and those of torch's pool may already run."""
    os.sched_setaffinity(0, cpus)
    for task in Path("/proc/self/task").glob("*"):
        # A thread may end while they are listed.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cpus)
