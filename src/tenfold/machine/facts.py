"""What is recorded about the machine with every run, so that its numbers can be understood later."""

import os
import platform
import re
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil

from tenfold.machine import cgroups, devices
from tenfold.machine.cores import ROOT, Topology, budget, write_cpus

JSON = dict[str, "JSON"] | list["JSON"] | str | int | float | bool | None
"""What JSON can say."""

_PACKAGES = ("tenfold", "torch", "numpy", "scikit-learn", "pydantic", "cloudpickle", "psutil", "mpi4py")
_CONTAINER = re.compile("docker|containerd|kubepods|libpod|lxc")
# Each name with what Linux (x86, then ARM) and torch call it.
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
_BF16 = {"avx512_bf16", "amx_bf16", "arm_bf16"}


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
        "packages": {**_versions()},
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
        "quota": cgroups.cpu_quota(root),
        "budget": budget(root),
    }


@cache
def _versions() -> dict[str, JSON]:
    """Return the versions of the packages that matter here, read once: parsing what describes them takes long."""
    versions: dict[str, JSON] = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def processor_name(root: Path = ROOT) -> str:
    """The processor's name, as nearly as the system tells."""
    named = _cpuinfo(root).get("model name") or _capabilities().get("cpu_name")
    return str(named or platform.processor() or platform.machine() or "unknown")


def instruction_sets(root: Path = ROOT) -> list[str]:
    """Those of the instruction sets that matter here which the processor has."""
    cpuinfo = _cpuinfo(root)
    flags = set((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
    flags = flags or {name for name, has in _capabilities().items() if has is True}
    return [name for name, spellings in _INSTRUCTIONS.items() if flags & spellings]


def has_bf16(sets: list[str]) -> bool:
    """Whether the processor itself multiplies bfloat16; without that, bf16 on the CPU is slower than float32."""
    return not _BF16.isdisjoint(sets)


def _cpuinfo(root: Path) -> dict[str, str]:
    """What Linux says about the first cpu; on hybrid processors they agree in what is asked here."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _capabilities() -> dict[str, object]:
    """What torch says about the cpu, for systems without /proc (younger versions of torch only)."""
    import torch

    return dict(getattr(torch.cpu, "get_capabilities", dict)())


def machine_load() -> float | None:
    """Return the number of busy or waiting processes over the last minute; None where the system does not tell it."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
