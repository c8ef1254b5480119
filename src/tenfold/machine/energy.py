"""The energy that this machine has used, where it counts that: processors by RAPL, NVIDIA's GPUs by NVML."""

import ctypes
from contextlib import suppress
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
PACKAGES = "intel-rapl:?"
"""The domains of whole processors; AMD's have the same name. Their parts are in domains of their own."""


class EnergyMeter:
    """Counts the energy from its making on: of the whole machine, whoever uses it."""

    def __init__(self) -> None:
        self._before = _counters()

    def joules(self) -> float | None:
        """Return the energy used so far; None where the machine does not count it."""
        used = 0.0
        for name, (now, limit) in _counters().items():
            before, _ = self._before.get(name, (now, limit))
            used += (now - before) % limit if limit else now - before
        return used if self._before else None


def _counters() -> dict[str, tuple[float, float]]:
    """Return each counter in joules, with the value at which it begins again (0: it does not)."""
    return _processors() | _gpus()


def _processors() -> dict[str, tuple[float, float]]:
    found = {}
    for domain in POWERCAP.glob(PACKAGES):
        with suppress(OSError, ValueError):  # only root may read it on most systems
            used, limit = (int((domain / name).read_text()) / 1e6 for name in ("energy_uj", "max_energy_range_uj"))
            found[domain.name] = used, limit
    return found


def _gpus() -> dict[str, tuple[float, float]]:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    found: dict[str, tuple[float, float]] = {}
    if library.nvmlInit_v2() != 0:
        return found
    try:
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            device, used = ctypes.c_void_p(), ctypes.c_ulonglong()
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0 and (
                library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(used)) == 0
            ):
                found[f"gpu {index}"] = used.value / 1e3, 0.0
    finally:
        library.nvmlShutdown()
    return found
