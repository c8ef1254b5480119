"""The limits of this process (cpus, memory, open files), and the division of cpus among workers.

By default, threads x workers is at most the number of cores. Control groups (v1 and v2) are read from the process's own
group up to the root; `joblib.cpu_count` reads only the root, and rounds 1.5 cores up to 2.
"""

import contextlib
import math
import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from time import sleep

import psutil

from tenfold.errors import MachineError
from tenfold.registry import Registry

ROOT = Path("/")
_HIGHEST_CPU = 65_535
HIGH_LOAD = 0.75
"""Runnable processes per cpu above which other programs take cores from a worker's threads."""
WAIT_POLICY = "OMP_WAIT_POLICY"
_lacks_threads: set[int] = set()
"""The pid of this process if it was forked from a process in which torch may have used threads."""
_limits: list[int] = []
"""The numbers of cores that `limited_to` allows, innermost last."""
_unused: set[int] = set()
"""The pid of the process from which others are forked before torch has computed in it."""


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
        if not (system / "cpu").is_dir():  # macOS, where every cpu is a core of one package
            return cls(tuple(Cpu(number, package=0, node=0, siblings=(number,)) for number in numbers))
        nodes = _nodes(system / "node")
        return cls(tuple(_read_cpu(system / "cpu" / f"cpu{number}" / "topology", number, nodes) for number in numbers))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the logical cpus, ascending."""
        return tuple(cpu.number for cpu in self.cpus)

    @property
    def physical(self) -> int:
        """The number of physical cores of the cpus."""
        return len({cpu.siblings for cpu in self.cpus})

    @property
    def nodes(self) -> int:
        """The number of NUMA nodes of the cpus."""
        return len({cpu.node for cpu in self.cpus})

    @property
    def packages(self) -> int:
        """The number of packages (sockets) of the cpus."""
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
    """The cpus on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def budget(root: Path = ROOT, allowed: Iterable[int] | None = None) -> int:
    """The number of cores that this process may use: the smaller of the affinity mask and the cgroup's CPU quota.

    A quota is rounded down, but never to 0. The number of cpus in the machine is irrelevant.
    """
    cpus = len(usable_cpus() if allowed is None else set(allowed))
    if allowed is None and _limits:
        cpus = min(cpus, _limits[-1])
    quota = cpu_quota(root)
    return max(1, cpus if quota is None else min(cpus, math.floor(quota)))


def are_shared(processes: int) -> bool:
    """Return whether this number of busy processes must share cores; pinned processes need not."""
    pinned = len(usable_cpus()) == 1
    return processes > (os.cpu_count() or 1 if pinned else budget())


@contextmanager
def limited_to(count: int) -> Iterator[None]:
    """Limit the cores that this process counts on during the block, because other processes run at the same time."""
    _limits.append(count)
    try:
        yield
    finally:
        _limits.pop()


def count_workers(device: str = "cpu") -> int:
    """Return how many workers `workers = "auto"` stands for: one for each core that this process may use.

    It is one on a GPU, which more replicas would share, and if a launcher has started ranks, which are the workers.
    """
    from tenfold.launchers import detect_world

    if device == "auto":
        from tenfold.machine import devices

        device = str(devices.resolve("auto"))
    return budget() if device == "cpu" and detect_world() is None else 1


def _nodes(folder: Path) -> dict[int, int]:
    """The NUMA node of each cpu; empty where the kernel knows of none."""
    nodes: dict[int, int] = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        # A node that has memory but no cpus has an empty list.
        if text := _text(path):
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


def share(budget: int, workers: int, threads: int | None = None, *, oversubscribe: bool = False) -> int:
    """Threads for each worker: those requested, or an equal share of the budget of cores, max(1, budget // workers)."""
    if workers < 1:
        raise MachineError(f"cannot share {budget} cores among {workers} workers; use at least 1 worker")
    if threads is None:
        return max(1, budget // workers)
    if threads < 1:
        raise MachineError(f"cannot give each worker {threads} threads; use at least 1")
    if workers * threads > budget and not oversubscribe:
        fits = f"{budget} workers of 1 thread" if workers > budget else f"{budget // workers} threads each"
        raise MachineError(
            f"{workers} workers x {threads} threads need {workers * threads} cores, but this process may use {budget}; "
            f"use at most {fits}, or set oversubscribe to true"
        )
    return threads


def load_is_high() -> bool:
    """Whether other programs use most of the cores: by the mean of the last minute, and still now.

    This program's own work in the last minute, such as a calibration, does not make a machine busy.
    """
    high = HIGH_LOAD * (os.cpu_count() or 1)
    try:
        if os.getloadavg()[0] < high:
            return False
    except OSError:
        return False
    running = running_elsewhere()
    return running is None or running >= high


def running_elsewhere() -> float | None:
    """Return the number of other runnable threads, averaged over a few samples; None if it is unknown."""
    seen = []
    for _ in range(5):
        sleep(0.01)
        try:
            text = Path("/proc/loadavg").read_text(encoding="ascii")
        except OSError:
            return None
        seen.append(int(text.split()[3].partition("/")[0]) - 1)  # this thread runs, too
    return max(0.0, sum(seen) / len(seen))


@contextmanager
def wait_policy_for_children() -> Iterator[None]:
    """Make processes started in this block put waiting threads to sleep, if the machine is busy now.

    By default OpenMP threads spin while they wait for each other. On an idle machine this is faster (LeNet-5 on 16
    cores: 5.7 against 7.1 ms per step with 2 threads, 3.1 against 4.7 ms with 8). On a busy machine it takes cores from
    the threads that are awaited (2 cores under a load of 10: 246 against 18 ms with 2 threads). A user's own setting is
    kept.
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
    """Let waiting threads of this process sleep if the machine is busy now; has no effect after torch is imported."""
    if WAIT_POLICY not in os.environ and "torch" not in sys.modules and load_is_high():
        os.environ[WAIT_POLICY] = "PASSIVE"


def waiting_threads_spin() -> bool:
    """Return whether waiting threads of this process, which has imported torch, occupy cores."""
    return WAIT_POLICY not in os.environ and load_is_high()


def use_threads_that_exist() -> bool:
    """Return whether this process may use several threads; if it was forked from one with torch, limit torch to one.

    The OpenMP threads of torch do not exist in a forked process, and torch would wait for them forever. Call this
    before computing.
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


os.register_at_fork(after_in_child=_note_fork)


Order = Callable[[Topology, int], tuple[int, ...]]
"""Orders all cpus for assignment to workers, given the number of threads of each worker."""


@dataclass(frozen=True, slots=True)
class CoreMap:
    """The cpus of each pinned worker, and a note for the user, if any."""

    policy: str
    workers: tuple[tuple[int, ...], ...]
    note: str = ""

    def cpus(self, worker: int) -> tuple[int, ...]:
        """The cpus of a worker; empty if it is not pinned."""
        return self.workers[worker] if worker < len(self.workers) else ()


NOT_PINNED = CoreMap("none", ())
"""The map of any number of workers that are not pinned."""


def compact(topology: Topology, threads: int) -> tuple[int, ...]:  # noqa: ARG001 - every order is asked alike
    """Neighbors first: the SMT siblings of a core, then the cores of a NUMA node, then the next node."""
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
    cpus_of_workers = [
        [order[(worker * threads + thread) % len(order)] for thread in range(threads)] for worker in range(workers)
    ]
    note = f"{workers} workers x {threads} threads share {len(order)} cpus" if workers * threads > len(order) else ""
    return CoreMap(policy, tuple(tuple(dict.fromkeys(cpus)) for cpus in cpus_of_workers), note)


def cpu_count_of(policy: str, otherwise: int) -> int:
    """Return the number of cpus that a list such as "0-3,8" names, at least 1; for a policy, return `otherwise`."""
    try:
        return max(1, len(set(parse_cpus(policy)))) if policy[:1].isdigit() else otherwise
    except ValueError:  # `plan` says what is wrong with the list
        return otherwise


def apply(cpus: tuple[int, ...]) -> str | None:
    """Pin this process and all its threads to `cpus`, if any; return a sentence if this fails."""
    if not cpus:
        return None
    try:
        if not hasattr(os, "sched_setaffinity"):
            return "workers are not pinned: this system has no way to pin a process; set pin to 'none'"
        _pin_threads(cpus)
    except OSError as error:
        return (
            f"workers are not pinned: the system refused cpus {write_cpus(cpus)} ({error.strerror}); set pin to 'none'"
        )
    return None


@contextlib.contextmanager
def pinned(cpus: tuple[int, ...]) -> Iterator[str | None]:
    """Pin this process for the duration of the block; yield a sentence if this fails."""
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
        raise MachineError(f"the cpu list '{text}' lists {write_cpus(twice)} more than once; list each cpu once")
    if missing := sorted(set(cpus) - set(topology.numbers)):
        available = write_cpus(topology.numbers)
        raise MachineError(
            f"the cpu list '{text}' lists {write_cpus(missing)}, but this process may use only {available}"
        )
    if len(cpus) < workers:
        raise MachineError(f"the cpu list '{text}' has {len(cpus)} cpus for {workers} workers; list at least {workers}")
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


# Version 1 has no word for "unlimited memory": it answers with a number near 2^63.
_UNLIMITED_BYTES = 2**60
PER_WORKER = 4
"""Files for each worker process: its connection, two ends of pipes that show its death, and a temporary one."""
SPARE = 16
"""For shared memory, the store of runs and imports."""
SPARE_ONCE_RECORDED = 4
"""For files that are open for a moment, when shared memory and the store of runs are open already."""


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The CPU quota of this process in cores (1.5 = one and a half cores); None without a limit.

    A limit applies to all groups below it, so the lowest one between the process's group and the root counts.
    """
    limits = [_cpu_limit(group) for group in _groups(root, "cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """The bytes of memory that this process's group may use; None without a limit."""
    limits = [_memory_limit(group) for group in _groups(root, "memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_left(root: Path = Path("/")) -> int | None:
    """The bytes of memory still available to this process's group; None without a limit."""
    limits = [(_memory_limit(group), group) for group in _groups(root, "memory")]
    return min((max(0, limit - _memory_used(group)) for limit, group in limits if limit is not None), default=None)


def count_out_of_memory_kills(root: Path = Path("/")) -> int:
    """The number of processes killed for lack of memory, in this process's group or else on the machine."""
    for group in _groups(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            counts = _counts(group / name)
            if "oom_kill" in counts:
                return counts["oom_kill"]
    return _counts(root / "proc/vmstat").get("oom_kill", 0)


class MemoryHint:
    """A hint, in an error message about a killed process, that memory ran out."""

    def __init__(self) -> None:
        """Store the number of processes killed so far."""
        self._before = count_out_of_memory_kills()

    def __str__(self) -> str:
        """The text to append to an error message about a killed process; "" if memory is not the reason."""
        if count_out_of_memory_kills() <= self._before:
            return ""
        return ": the memory did not suffice; use fewer workers, smaller batches or a smaller model, or raise the limit"


def free_memory() -> int:
    """The bytes of free memory; in a container, within the container's limit."""
    available, left = int(psutil.virtual_memory().available), memory_left()
    return available if left is None else min(available, left)


def format_bytes(nbytes: int) -> str:
    """Return an amount of memory as text for messages."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{max(1, round(nbytes / 1e6))} MB"


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the groups that hold this process for `controller`, from its own up to where they are mounted."""
    paths = _memberships(root)
    for version, controllers, shown, mounted in _mounts(root):
        if version == 1 and controller not in controllers:
            continue
        path = paths.get(controller if version == 1 else "")
        if path is None:
            continue
        top = root / mounted.lstrip("/")
        group = top / _below(path, shown)
        while group != top:
            yield group
            group = group.parent
        yield top


def _below(path: str, shown: str) -> PurePosixPath:
    """`path` as seen from a mount that shows the hierarchy from `shown` downwards."""
    group = PurePosixPath(path)
    if group.is_relative_to(shown) and ".." not in group.parts:
        return group.relative_to(shown)
    # The group lies outside of what a container can see: the mount's top is the nearest to it.
    return PurePosixPath()


def _memberships(root: Path) -> dict[str, str]:
    """The path of this process's group for each v1 controller, and under "" the one for version 2."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(root: Path) -> Iterator[tuple[int, list[str], str, str]]:
    """Each cgroup mount: its version, its controllers (version 1), the group it shows and where it is mounted."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        if after.startswith(("cgroup ", "cgroup2 ")):
            shown, mounted = before.split()[3:5]
            kind, *_, options = after.split()
            yield (2 if kind == "cgroup2" else 1), options.split(","), shown, mounted


def _cpu_limit(group: Path) -> float | None:
    words = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
    match words:
        case [quota, period] if quota.isdigit() and int(period) > 0:
            return int(quota) / int(period)
    # "max" in version 2, -1 in version 1, or no such file.
    return None


def _memory_limit(group: Path) -> int | None:
    match _words(group / "memory.max") or _words(group / "memory.limit_in_bytes"):
        case [limit] if limit.isdigit() and int(limit) < _UNLIMITED_BYTES:
            return int(limit)
    return None


def _memory_used(group: Path) -> int:
    """The memory that the group holds, without cached files, which the system drops when needed."""
    used = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
    stat = dict(line.split(maxsplit=1) for line in _lines(group / "memory.stat"))
    cached = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
    return max(0, int(used[0]) - int(cached)) if used else 0


def _counts(path: Path) -> dict[str, int]:
    words = (line.split() for line in _lines(path))
    return {name: int(count) for name, count in (pair for pair in words if len(pair) == 2) if count.isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def open_file_limit() -> int | None:
    """The maximum number of open files; None without a limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def workers_within_limit(most: int, spare: int = SPARE) -> int:
    """The number of workers that a limit on open files allows, beside the files that are open now."""
    return max(0, (most - _open_files() - spare) // PER_WORKER)


def check_open_files(workers: int, spare: int = SPARE) -> None:
    """Raise MachineError for more worker processes than the limit on open files allows."""
    most = open_file_limit()
    if most is not None and workers > workers_within_limit(most, spare):
        needed = _open_files() + spare + PER_WORKER * workers
        allowed = workers_within_limit(most, spare)
        fewer = f", or use {'at most ' * (allowed > 1)}{allowed} worker{'s' * (allowed > 1)}" if allowed else ""
        raise MachineError(
            f"{workers} worker{'s need' if workers > 1 else ' needs'} about {needed} open files, but the limit is "
            f"{most}; raise it with `ulimit -n {max(1024, 2 * needed)}`{fewer}"
        )


def _open_files() -> int:
    """The number of open files of this process."""
    return int(psutil.Process().num_fds())
