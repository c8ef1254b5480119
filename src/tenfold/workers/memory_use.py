"""The memory that a worker uses, as it is recorded after every epoch."""

import torch

from tenfold.machine.process_state import resident_memory

MEMORY_METRICS = ("memory", "gpu_memory")


def memory_use(device: torch.device) -> dict[str, float]:
    """Return bytes by the metric's name: the memory of this process, and the most that was allocated on its GPU."""
    found = {"memory": float(resident_memory())}
    if device.type == "cuda":
        found["gpu_memory"] = float(torch.cuda.max_memory_allocated(device))
    return found
