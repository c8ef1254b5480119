"""What is recorded about the machine with every run, so that its numbers can be understood later."""

import os
import platform
import re
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import psutil

from tenfold.machine import cgroups, devices, processor
from tenfold.machine.cores import ROOT, Topology, budget, write_cpus

JSON = dict[str, "JSON"] | list["JSON"] | str | int | float | bool | None
"""What JSON can say."""

_PACKAGES = ("tenfold", "torch", "numpy", "scikit-learn", "pydantic", "cloudpickle", "psutil", "mpi4py")
_CONTAINER = re.compile("docker|containerd|kubepods|libpod|lxc")


def facts(root: Path = ROOT) -> dict[str, JSON]:
    """Everything about this machine that can change a run's speed or result. Memory is in bytes."""
    memory = psutil.virtual_memory()
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "container": in_container(root),
        "python": platform.python_version(),
        "cpu": _cpu(root),
        "memory": {"total": memory.total, "available": memory.available, "limit": cgroups.memory_limit(root)},
        "torch": torch_build(),
        "gpus": [asdict(gpu) for gpu in devices.gpus()],
        "packages": _versions(),
    }


def in_container(root: Path = ROOT) -> bool:
    """Whether this process runs in a container, as far as one can tell from inside."""
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    if "KUBERNETES_SERVICE_HOST" in os.environ or "container" in os.environ:
        return True
    try:
        return bool(_CONTAINER.search((root / "proc/1/cgroup").read_text()))
    except OSError:
        return False


def torch_build() -> dict[str, JSON]:
    """Which torch this is, what it was built with and how many threads it computes with."""
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
        "model": processor.model(root),
        "architecture": platform.machine(),
        "instructions": list(processor.instructions(root)),
        "logical": psutil.cpu_count(),
        "physical": psutil.cpu_count(logical=False),
        "usable": write_cpus(topology.numbers),
        "usable_physical": topology.physical,
        "numa_nodes": topology.nodes,
        "packages": topology.packages,
        "quota": cgroups.cpu_quota(root),
        "budget": budget(root),
    }


def _versions() -> dict[str, JSON]:
    versions: dict[str, JSON] = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
