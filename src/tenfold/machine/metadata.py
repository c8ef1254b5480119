"""The metadata that every run records about its origin: machine, code, and the user's files."""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from tenfold.common.files import names_data_file, open_regular
from tenfold.common.imports import locate
from tenfold.experiment import Experiment
from tenfold.machine import cores, devices
from tenfold.machine.cores import ROOT, Topology, budget, write_cpus
from tenfold.registry import SOURCES

JSON = dict[str, "JSON"] | list["JSON"] | str | int | float | bool | None
"""A value that JSON can hold."""

_PACKAGES = ("tenfold", "torch", "numpy", "scikit-learn", "pydantic", "cloudpickle", "psutil", "mpi4py")
_CONTAINER = re.compile("docker|containerd|kubepods|libpod|lxc")
# Each name with its names in Linux (x86, then ARM) and torch.
_INSTRUCTIONS = {
    "avx2": {"avx2"},
    "avx512f": {"avx512f", "avx512_f"},
    "avx512_bf16": {"avx512_bf16"},
    "amx": {"amx_tile"},
    "amx_bf16": {"amx_bf16"},
    "neon": {"asimd", "neon"},
    "sve": {"sve"},
    "arm_bf16": {"bf16", "arm_bf16"},
}
POWERCAP = Path("/sys/class/powercap")
RAPL_PACKAGES = "intel-rapl:?"
"""The domains of whole processors, also for AMD; parts of a processor have separate domains."""
_BF16 = {"avx512_bf16", "amx_bf16", "arm_bf16"}


def collect_metadata(root: Path = ROOT) -> dict[str, JSON]:
    """Return all properties of this machine that can affect a run's speed or result. Memory is in bytes."""
    memory = psutil.virtual_memory()
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "container": in_container(root),
        "python": platform.python_version(),
        "cpu": _cpu(root),
        "memory": {"total": memory.total, "available": memory.available, "limit": cores.memory_limit(root)},
        "torch": torch_build(),
        "gpus": [asdict(gpu) for gpu in devices.gpus()],
        "packages": {**_versions()},
    }


def in_container(root: Path = ROOT) -> bool:
    """Return whether this process appears to run in a container."""
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    if "KUBERNETES_SERVICE_HOST" in os.environ or "container" in os.environ:
        return True
    try:
        return bool(_CONTAINER.search((root / "proc/1/cgroup").read_text()))
    except OSError:
        return False


def torch_build() -> dict[str, JSON]:
    """Return the version, build options and number of threads of torch."""
    import torch

    return {
        "version": torch.__version__,
        "build": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "mkldnn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        "openmp": torch.backends.openmp.is_available(),  # type: ignore[no-untyped-call]
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _cpu(root: Path) -> dict[str, JSON]:
    topology = Topology.read(root)
    return {
        "model": processor_name(root),
        "architecture": platform.machine(),
        "instructions": list(instruction_sets(root)),
        "logical": psutil.cpu_count(),
        "physical": psutil.cpu_count(logical=False),
        "usable": write_cpus(topology.numbers),
        "usable_physical": topology.physical,
        "numa_nodes": topology.nodes,
        "packages": topology.packages,
        "layout": topology.layout(),
        "quota": cores.cpu_quota(root),
        "budget": budget(root),
    }


@cache
def _versions() -> dict[str, JSON]:
    """Return the versions of the relevant packages, read once because parsing their metadata is slow."""
    versions: dict[str, JSON] = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def processor_name(root: Path = ROOT) -> str:
    """Return the processor's name if the system reports it."""
    named = _cpuinfo(root).get("model name") or _capabilities().get("cpu_name")
    return str(named or platform.processor() or platform.machine() or "unknown")


def instruction_sets(root: Path = ROOT) -> list[str]:
    """Return the relevant instruction sets of the processor."""
    cpuinfo = _cpuinfo(root)
    flags = set((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
    flags = flags or {name for name, has in _capabilities().items() if has is True}
    return [name for name, spellings in _INSTRUCTIONS.items() if flags & spellings]


def has_bf16(sets: list[str]) -> bool:
    """Return whether the processor multiplies bfloat16 in hardware; otherwise bf16 is slower than float32."""
    return not _BF16.isdisjoint(sets)


@cache
def _cpuinfo(root: Path) -> dict[str, str]:
    """Return the entries of /proc/cpuinfo for the first CPU; hybrid processors agree in all entries used here.

    Read once: with many cpus, the file is long and Linux asks each of them for its clock rate.
    """
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _capabilities() -> dict[str, object]:
    """Return the CPU capabilities that torch reports, for systems without /proc (recent versions of torch only)."""
    import torch

    return dict(getattr(torch.cpu, "get_capabilities", dict)())


def machine_load() -> float | None:
    """Return the number of busy or waiting processes over the last minute; None if unavailable."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


MOST_LOAD_PER_CORE = 1.25
"""A load average per core above this means that other programs are running; a run or a measurement makes about 1."""


def load_per_core() -> float:
    """Return the load per core over the last minute; 0 if unavailable."""
    return (machine_load() or 0.0) / (os.cpu_count() or 1)


def clock_mhz(root: Path = ROOT) -> float | None:
    """Return the present clock frequency of the first cpu; None if unavailable."""
    with suppress(OSError, ValueError), (root / "proc/cpuinfo").open() as lines:  # reading the rest is slow
        return next((float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")), None)
    return None


class EnergyMeter:
    """Measures the energy that the whole machine uses, other programs included: CPUs by RAPL, NVIDIA GPUs by NVML."""

    def __init__(self) -> None:
        self._before = _counters()

    def joules(self) -> float | None:
        """Return the energy used so far; None if the machine does not measure it."""
        used = 0.0
        for name, (now, limit) in _counters().items():
            before, _ = self._before.get(name, (now, limit))
            used += (now - before) % limit if limit else now - before
        return used if self._before else None


def _counters() -> dict[str, tuple[float, float]]:
    """Return each counter in joules, with the value at which it wraps around (0 if it does not)."""
    return _processors() | _gpus()


def _processors() -> dict[str, tuple[float, float]]:
    energy = {}
    for domain in POWERCAP.glob(RAPL_PACKAGES):
        with suppress(OSError, ValueError):  # only root may read it on most systems
            used, limit = (int((domain / name).read_text()) / 1e6 for name in ("energy_uj", "max_energy_range_uj"))
            energy[domain.name] = used, limit
    return energy


def _gpus() -> dict[str, tuple[float, float]]:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    energy: dict[str, tuple[float, float]] = {}
    if library.nvmlInit_v2() != 0:
        return energy
    try:
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            device, used = ctypes.c_void_p(), ctypes.c_ulonglong()
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0 and (
                library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(used)) == 0
            ):
                energy[f"gpu {index}"] = used.value / 1e3, 0.0
    finally:
        library.nvmlShutdown()
    return energy


_profile: ContextVar[Path | None] = ContextVar("profile", default=None)


@contextmanager
def using_profile(path: Path) -> Iterator[None]:
    """Use another profile of this machine for predictions within the block, in this thread only."""
    token = _profile.set(path)
    try:
        yield
    finally:
        _profile.reset(token)


def profile_path() -> Path:
    """Return the path of this machine's profile: $TENFOLD_PROFILE, else in the user's data folder."""
    from platformdirs import user_data_path

    if (chosen := _profile.get()) is not None:
        return chosen
    return Path(os.environ.get("TENFOLD_PROFILE") or user_data_path("tenfold") / "profile.toml")


# The origin of a run: the command line, the version of the code, and the user's files.

COMMIT_SECONDS = 2.0
"""How long the commit of a folder is cached."""


def origin(experiment: Experiment) -> dict[str, Any]:
    """Return the origin of a run: the command line, the version of the code, and the user's files."""
    return {"command": _command(), "code": _commit(), "user_files": user_files(experiment)}


def measuring_machine(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded metadata, apart from the experiment, that the time of a run depends on.

    The threads that an experiment leaves open follow from the cores.
    """
    machine = recorded.get("machine", {})
    cpu, packages = machine.get("cpu", {}), recorded.get("packages") or machine.get("packages", {})
    return {
        "host": machine.get("host"),
        "processor": cpu.get("model"),
        "cores": [cpu.get(name) for name in ("logical", "usable_physical", "quota", "budget")],
        "gpus": [gpu.get("name") for gpu in machine.get("gpus", ())],
        "versions": {name: packages.get(name) for name in ("tenfold", "torch")},
    }


def user_files(experiment: Experiment) -> dict[str, str]:
    """Return a digest of each user file, folder or module that an experiment names, by name.

    A digest depends on the content of a file, or on the names, sizes and times of the files in a folder. Imports of a
    module are ignored.
    """
    name = experiment.data.name
    digests = module_digests(experiment.import_paths)
    if isinstance(name, str) and ":" not in name and name not in SOURCES and names_data_file(name):
        digests[name] = file_digest(Path(name).expanduser())
    return digests


def module_digests(named: Iterable[object]) -> dict[str, str]:
    """Return a digest of the source file of each module named by an import path; other values are ignored."""
    modules = dict.fromkeys(path.partition(":")[0] for path in named if isinstance(path, str) and ":" in path)
    return {module: file_digest(Path(files[-1]) if (files := locate(module)) else None) for module in modules}


def file_digest(path: Path | None) -> str:
    """Return a digest of a file's content, or of a folder's list of files; "" if there is neither."""
    if path is None or not (path.is_file() or path.is_dir()):
        return ""
    if path.is_dir():
        return hashlib.blake2b(repr(_listed(path)).encode(), digest_size=8).hexdigest()
    stat = path.stat()
    return _content_digest(path.resolve(), stat.st_size, stat.st_mtime_ns)


def _listed(folder: Path) -> list[tuple[str, int, int]]:
    """Return the names, sizes and times of the files in a folder, without broken links."""
    files = []
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # removed meanwhile
            if path.is_file():
                stat = path.stat()
                files.append((str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns))
    return files


@cache
def _content_digest(path: Path, _size: int, _time: int) -> str:
    """Return a digest of a file's content; a file of the same size and time is not read again."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def _command() -> str:
    program = Path(sys.argv[0])
    return shlex.join(["tenfold" if program.name in ("__main__.py", "tenfold") else program.name, *sys.argv[1:]])


def _commit() -> str:
    """Return the commit of the current folder, cached briefly because many short runs can begin within a second."""
    return _commit_of(Path.cwd(), round(time.monotonic() / COMMIT_SECONDS))


@lru_cache(maxsize=4)
def _commit_of(here: Path, _period: int) -> str:
    """Return the commit of the folder that the run was started in, "+" for uncommitted changes; "" outside git.

    A repository may name programs in its own settings: hooks, monitors, filters. The first two are not run by these
    commands. If it has filters, which read changed files, the check is skipped and "?" is added.
    """
    try:
        if "GIT_DIR" not in os.environ and not any((folder / ".git").exists() for folder in (here, *here.parents)):
            return ""  # no need to start git
        commit = _git("rev-parse", "--short=12", "HEAD")
        filters = _git("config", "--show-scope", "--includes", "--get-regexp", r"^filter\.", check=False)
        if any(line.startswith(("local", "worktree")) for line in filters.splitlines()):
            return f"{commit}?"
        return commit + ("+" if _git("diff-index", "--name-only", "--ignore-submodules", "HEAD") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*command: str, check: bool = True) -> str:
    line = ["git", "-c", "core.fsmonitor=false", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=5, check=check).stdout.strip()
