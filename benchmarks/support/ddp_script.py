"""A script as people write them, for benchmarks/script_simulation.py: DDP on some networks, and all_reduce alone.

    ddp_script.py LeNet-5 200 cnn 60        # steps
    ddp_script.py all_reduce 1 1000000      # numbers

Every rank prints its seconds for each. In a simulation the clock that it reads is the virtual one.
"""

import sys
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import tenfold
from tenfold.board.demo_tasks import Lstm, tabular
from tenfold.models.networks import cnn, lenet5


def wide() -> nn.Module:
    """A network of 2.6 million parameters that computes little: DDP has more than one bucket."""
    sizes = [512, 1024, 1024, 1024]
    hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(1024, 10))


MODELS = {
    "LeNet-5": (lambda: lenet5((1, 28, 28), 10), (64, 1, 28, 28)),
    "cnn": (lambda: cnn((1, 28, 28), 10), (32, 1, 28, 28)),
    "tabular MLP": (tabular, (32, 64)),
    "LSTM": (Lstm, (32, 20, 32)),
    "wide MLP": (wide, (64, 512)),
}
WARM_UP = 10
COMPUTE = 10
"""Products of matrices between two operations, which take about 4 ms: they come when memory and caches have been used
for something else, and the ranks at different times, as in training."""


def train(name: str, steps: int) -> float:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, labels = torch.randn(*shape), torch.randint(0, 10, shape[:1])
    began = 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            dist.barrier()
            began = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    dist.barrier()
    return time.perf_counter() - began


def time_sums(numel: int, calls: int) -> float:
    """Return the mean seconds of an all_reduce between computing: from its last rank's begin to its last rank's end.

    That is how a simulation counts them; the ranks of a benchmark share a clock. The mean, as the seconds of many steps
    contain those of the few that TCP delays.
    """
    tensor, factor = torch.zeros(numel), torch.randn(256, 256)
    times = []
    for _ in range(calls):
        for _ in range(COMPUTE):
            factor @ factor
        began = time.monotonic()
        dist.all_reduce(tensor, async_op=True).get_future().wait()  # as DDP waits
        times.append((began, time.monotonic()))
    own = torch.tensor(times[calls // 4 :], dtype=torch.float64)  # at first, TCP learns what the link carries
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    begins, ends = torch.stack(every).amax(dim=0).unbind(dim=1)
    return (ends - begins).mean().item()


assert tenfold.backend
dist.init_process_group("tenfold")
first, *rest = sys.argv[1:]
if first == "all_reduce":
    seconds = [time_sums(int(numel), 16 if int(numel) > 500_000 else 100) for numel in rest]
else:
    seconds = [train(name, int(steps)) for name, steps in zip([first, *rest[1::2]], rest[::2], strict=True)]
print("SECONDS", *seconds, flush=True)
dist.destroy_process_group()
