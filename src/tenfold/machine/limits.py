"""The limits of this process: its Linux control groups (v1 and v2), and open files.

`joblib.cpu_count` is no substitute: it reads only the group at the top of the mount, while the limits of a Slurm job or
a systemd service are in groups below it, and it rounds 1.5 cores up to 2.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tenfold.errors import MachineError

# Version 1 has no word for "unlimited memory": it answers with a number near 2^63.
_UNLIMITED_BYTES = 2**60
PER_WORKER = 4
"""Files for each worker process: its connection, two ends of pipes that show its death, and a temporary one."""
SPARE = 16
"""For shared memory, the store of runs and imports."""
SPARE_ONCE_RECORDED = 4
"""For files that are open for a moment, when shared memory and the store of runs are open already."""


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The cores' worth of time that this process may use (1.5 = one and a half cores); None where nothing limits it.

    Limits hold for everything below them, so the tightest one between the process's group and the top counts.
    """
    limits = [_cpu_limit(group) for group in _groups(root, "cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """The bytes of memory that this process's group may use; None where nothing limits it."""
    limits = [_memory_limit(group) for group in _groups(root, "memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_left(root: Path = Path("/")) -> int | None:
    """The bytes that this process's group may still take; None where nothing limits it."""
    limits = [(_memory_limit(group), group) for group in _groups(root, "memory")]
    return min((max(0, limit - _memory_used(group)) for limit, group in limits if limit is not None), default=None)


def count_out_of_memory_kills(root: Path = Path("/")) -> int:
    """The processes that the kernel has killed for lack of memory: in this process's group, else on the machine."""
    for group in _groups(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            counts = _counts(group / name)
            if "oom_kill" in counts:
                return counts["oom_kill"]
    return _counts(root / "proc/vmstat").get("oom_kill", 0)


class MemoryHint:
    """Says whether a process that has been killed was killed for lack of memory."""

    def __init__(self) -> None:
        """Note how many have been killed so far."""
        self._before = count_out_of_memory_kills()

    def __str__(self) -> str:
        """What to add to the sentence about a killed process; "" where memory is not the reason."""
        if count_out_of_memory_kills() <= self._before:
            return ""
        return ": the memory did not suffice; use fewer workers, smaller batches or a smaller model, or raise the limit"


def free_memory() -> int:
    """The bytes of memory that are free; in a container, of what the container may use."""
    import psutil

    available, left = int(psutil.virtual_memory().available), memory_left()
    return available if left is None else min(available, left)


def format_bytes(nbytes: int) -> str:
    """Return an amount of memory as a sentence shows it."""
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
    """The largest number of open files; None where there is no limit."""
    try:
        import resource
    except ImportError:
        return None
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
    """The number of files that are open in this process."""
    import psutil

    process = psutil.Process()
    return int(process.num_fds()) if hasattr(process, "num_fds") else 0
