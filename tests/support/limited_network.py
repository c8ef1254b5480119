"""A network of 12.6 million weights, whose worker may use only 290 MB more than it has in use when it is made."""

import multiprocessing
import resource
from pathlib import Path

from torch import nn

WIDTH, LIMIT = 1024, 290 << 20


def make() -> nn.Module:
    if multiprocessing.parent_process() is not None:  # a worker
        status = Path("/proc/self/status").read_text()
        data = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (data + LIMIT, resource.RLIM_INFINITY))
    layers = [layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), *layers, nn.Linear(WIDTH, 10))
