"""How many replicas a device can hold at once."""

from collections.abc import Callable
from itertools import pairwise

import torch

from tenfold.errors import ExperimentError


def peak_memory(work: Callable[[], object], device: torch.device) -> float:
    """Return the most bytes of device memory that the work allocates; 0 for a CPU, where they are not counted."""
    if device.type != "cuda":
        work()
        return 0.0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return float(torch.cuda.max_memory_allocated(device) - before)


def free_memory(device: torch.device) -> float:
    """Return how many bytes of a GPU can still be used, less a fifth as a reserve."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return 0.8 * (free + unused)


def groups_for_memory(count: int, each: float, available: float) -> list[range]:
    """Divide `count` replicas of `each` bytes into as few groups of nearly equal size as fit into memory."""
    most = int(available // each) if each > 0 else count
    if most < 1:
        raise ExperimentError(
            f"one replica needs {each / 1e9:.1f} GB, but the device has {available / 1e9:.1f} GB left; "
            "use a smaller batch_size or model"
        )
    groups = -(-count // min(most, count))
    edges = [round(number * count / groups) for number in range(groups + 1)]
    return [range(start, stop) for start, stop in pairwise(edges)]
