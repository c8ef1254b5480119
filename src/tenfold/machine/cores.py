"""The cpus of this machine: their topology, how many of them this process may use, and how workers share them.

By default, threads x workers is at most the number of cores.
"""

import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from tenfold.errors import MachineError
from tenfold.machine import limits

ROOT = Path("/")
_HIGHEST_CPU = 65_535
HIGH_LOAD = 0.75
"""Runnable processes per cpu above which other programs take cores from a worker's threads."""
WAIT_POLICY = "OMP_WAIT_POLICY"
_lacks_threads: set[int] = set()
"""This process, by its number, if it was forked from one whose threads torch may have computed with."""
_unused: set[int] = set()
"""The process that others are forked from before torch has computed in it, by its number."""


def parse_cpus(text: str) -> tuple[int, ...]:
    """Read a cpu list as Linux writes it, in its own order: "0-2,8" is (0, 1, 2, 8)."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high <= _HIGHEST_CPU:
            raise ValueError(f"'{part}' is not a range of CPUs")
        cpus.extend(range(low, high + 1))
    return tuple(cpus)


def write_cpus(cpus: Iterable[int]) -> str:
    """Write cpus as a short list, keeping their order: (0, 1, 2, 8) is "0-2,8"."""
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical cpu; `siblings` are all logical cpus of its physical core, itself included."""

    number: int
    package: int
    node: int
    siblings: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """The logical cpus that this process may use, and the cores, NUMA nodes and packages they belong to."""

    cpus: tuple[Cpu, ...]

    @classmethod
    def read(cls, root: Path = ROOT, allowed: Iterable[int] | None = None) -> "Topology":
        """Read /sys below `root` for the `allowed` cpus (default: those in this process's affinity mask)."""
        numbers = usable_cpus() if allowed is None else tuple(sorted(set(allowed)))
        system = root / "sys/devices/system"
        if not (system / "cpu").is_dir():
            return cls(_guess(numbers))
        nodes = _nodes(system / "node")
        return cls(tuple(_read_cpu(system / "cpu" / f"cpu{number}" / "topology", number, nodes) for number in numbers))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the logical cpus, ascending."""
        return tuple(cpu.number for cpu in self.cpus)

    @property
    def physical(self) -> int:
        """How many physical cores the cpus belong to."""
        return len({cpu.siblings for cpu in self.cpus})

    @property
    def nodes(self) -> int:
        """How many NUMA nodes the cpus belong to."""
        return len({cpu.node for cpu in self.cpus})

    @property
    def packages(self) -> int:
        """How many packages (sockets) the cpus belong to."""
        return len({cpu.package for cpu in self.cpus})

    def layout(self) -> list[list[list[int]]]:
        """Return the cpus of each physical core of each NUMA node."""
        nodes = sorted({cpu.node for cpu in self.cpus})
        return [
            [
                [cpu.number for cpu in self.cpus if cpu.siblings == siblings]
                for siblings in dict.fromkeys(cpu.siblings for cpu in self.cpus if cpu.node == node)
            ]
            for node in nodes
        ]


def usable_cpus() -> tuple[int, ...]:
    """The cpus that the system lets this process run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    import psutil

    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return tuple(sorted(process.cpu_affinity()))
    return tuple(range(psutil.cpu_count() or 1))


def budget(root: Path = ROOT, allowed: Iterable[int] | None = None) -> int:
    """How many cores this process may really use: the affinity mask or the cgroup's CPU quota, whichever is less.

    A quota is rounded down, but never to 0. The number of cpus in the machine plays no part.
    """
    cpus = len(usable_cpus() if allowed is None else set(allowed))
    quota = limits.cpu_quota(root)
    return max(1, cpus if quota is None else min(cpus, math.floor(quota)))


def _nodes(folder: Path) -> dict[int, int]:
    """The NUMA node of each cpu; empty where the kernel knows of none."""
    nodes: dict[int, int] = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        # A node that has memory but no cpus has an empty list.
        if text := path.read_text().strip():
            nodes.update(dict.fromkeys(parse_cpus(text), int(path.parent.name.removeprefix("node"))))
    return nodes


def _read_cpu(folder: Path, number: int, nodes: dict[int, int]) -> Cpu:
    # Some virtual machines and sandboxes leave files out or answer -1: such a cpu counts as a core of its own.
    siblings = _text(folder / "thread_siblings_list") or _text(folder / "core_cpus_list") or str(number)
    return Cpu(
        number=number,
        package=max(0, int(_text(folder / "physical_package_id") or 0)),
        node=nodes.get(number, 0),
        siblings=parse_cpus(siblings),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _guess(numbers: tuple[int, ...]) -> tuple[Cpu, ...]:
    """Cpus of a system without /sys: one package; Windows numbers SMT siblings next to each other, macOS has none."""
    import psutil

    logical, physical = psutil.cpu_count() or 1, psutil.cpu_count(logical=False) or 1
    smt = logical // physical if platform.system() == "Windows" and logical % physical == 0 else 1
    return tuple(
        Cpu(number, package=0, node=0, siblings=tuple(range(first, first + smt)))
        for number in numbers
        for first in [number // smt * smt]
    )


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


def load_is_high() -> bool:
    """Whether other programs use most of the cores: by the mean of the last minute, and still now.

    What this program did itself in the last minute, such as a calibration, does not make a machine busy.
    """
    high = HIGH_LOAD * (os.cpu_count() or 1)
    try:
        if os.getloadavg()[0] < high:
            return False
    except (OSError, AttributeError):
        return False
    running = running_elsewhere()
    return running is None or running >= high


def running_elsewhere(looks: int = 5) -> float | None:
    """Return the number of other runnable threads, averaged over a few samples; None if the system does not tell."""
    seen = []
    for _ in range(looks):
        sleep(0.01)
        try:
            text = Path("/proc/loadavg").read_text(encoding="ascii")
        except OSError:
            return None
        seen.append(int(text.split()[3].partition("/")[0]) - 1)  # this thread runs, too
    return max(0.0, sum(seen) / len(seen))


@contextmanager
def wait_policy_for_children() -> Iterator[None]:
    """Let processes that start in this block put waiting threads to sleep, if the machine is busy now.

    By default the threads of OpenMP spin while they wait for one another. On an idle machine that is faster (LeNet-5 on
    16 cores: 5.7 against 7.1 ms a step with 2 threads, 3.1 against 4.7 ms with 8). On a busy one it takes the cores
    from the threads that are waited for (2 cores under a load of 10: 246 against 18 ms with 2 threads). What the user
    has set stays.
    """
    if WAIT_POLICY in os.environ or not load_is_high():
        yield
        return
    os.environ[WAIT_POLICY] = "PASSIVE"
    try:
        yield
    finally:
        del os.environ[WAIT_POLICY]


def set_wait_policy() -> None:
    """Let waiting threads of this process sleep if the machine is busy now; it works until torch is imported."""
    if WAIT_POLICY not in os.environ and load_is_high():
        os.environ[WAIT_POLICY] = "PASSIVE"


def use_threads_that_exist() -> bool:
    """Return whether this process may use several threads; if it was forked from one with torch, torch uses only one.

    The threads that torch computes with (OpenMP) do not exist in such a process, and torch would wait for them forever.
    Whoever computes in this process calls this first.
    """
    if os.getpid() not in _lacks_threads:
        return True
    set_threads(1)
    return False


def set_threads(threads: int) -> None:
    """Let torch use this many threads in this process, or one where `use_threads_that_exist` allows only one."""
    import torch

    torch.set_num_threads(1 if os.getpid() in _lacks_threads else threads)


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Let torch use this many threads while the block lasts, as `set_threads` does."""
    import torch

    before = torch.get_num_threads()
    set_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_threads_in_children() -> None:
    """Let processes that are forked from this one use several threads: torch never computes in this one."""
    _unused.add(os.getpid())


def _note_fork() -> None:
    if "torch" in sys.modules and os.getppid() not in _unused:
        _lacks_threads.add(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _what_fits(budget: int, workers: int) -> str:
    if workers > budget:
        return f"use at most {budget} workers of 1 thread"
    return f"use at most {budget // workers} threads each"
