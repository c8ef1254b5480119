"""Times training on all cores, one worker a core, averaging at every step: Tenfold against PyTorch's own.

    python benchmarks/training.py --json training.json

- tenfold: all-reduce of weights in shared memory, at every step
- limit: the same workers, who never talk
- ddp: DistributedDataParallel over gloo, which averages gradients at every step
- postlocal: torch's PostLocalSGDOptimizer, which averages weights over gloo at every step
One thread each, the same model, batch, data and optimizer; peers index tensors and fuse their optimizer as we do.
Their networks are laid out as torch makes them; with --same-layout they get Tenfold's, channels last, so that only the
averaging differs. All take turns; a turn is five epochs after one that does not count, its time the slowest worker's.
"""

import statistics
import tempfile
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from support.gloo_ranks import run_ranks
from support.options import make_parser, write_json
from support.turns import spread, take_turns
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

import tenfold
from tenfold.data import batches
from tenfold.experiment import Model
from tenfold.machine import cores
from tenfold.models.networks import build

STEPS, EPOCHS = {"lenet5": 60, "cnn": 12}, 6
"""Steps in an epoch, and epochs, of which the first does not count."""
BATCH, RATE, MOMENTUM = 64, 0.02, 0.9


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", help="default: all cores that may be used")
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--same-layout", action="store_true", help="give the peers channels last, too")
    arguments = parser.parse_args()
    layout = torch.channels_last if arguments.same_layout else torch.contiguous_format
    rows = []
    for workers in arguments.workers or [cores.budget()]:
        for model in arguments.models:
            speeds = measure(model, workers, layout, arguments.repeats)
            rows.append({"model": model, "workers": workers, "samples_per_second": speeds})
    show(rows)
    write_json(arguments.json, rows)


def measure(model: str, workers: int, layout: torch.memory_format, repeats: int) -> dict[str, list[float]]:
    """Return the samples per second of each way, in each turn."""
    samples = STEPS[model] * BATCH * workers
    x, y = torch.randn(samples, 1, 28, 28).share_memory_(), torch.randint(10, (samples,)).share_memory_()
    ways: dict[str, Callable[[], float]] = {
        "tenfold": lambda: ours(model, workers, x, y, "allreduce"),
        "limit": lambda: ours(model, workers, x, y, "none"),
        "ddp": lambda: max(run_ranks(workers, peer, "ddp", model, layout, x, y)),
        "postlocal": lambda: max(run_ranks(workers, peer, "postlocal", model, layout, x, y)),
    }
    times = take_turns(ways, repeats)
    return {name: [samples * (EPOCHS - 1) / seconds for seconds in listed] for name, listed in times.items()}


def ours(model: str, workers: int, x: torch.Tensor, y: torch.Tensor, strategy: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = tenfold.train(
            model=model,
            data={"train": (x, y), "test": (x[:BATCH], y[:BATCH])},
            epochs=EPOCHS,
            batch_size=BATCH,
            optimizer="sgd",
            average="weights",
            lr=RATE,
            momentum=MOMENTUM,
            workers=workers,
            threads=1,
            strategy=strategy,
            sync_every=1,
            lr_scaling="none",
            engine="processes",
            pin="compact",
            runs=folder,
        )
        return run.history[-1]["seconds"] - run.history[0]["seconds"]


def peer(rank: int, workers: int, kind: str, model: str, layout: Any, x: Any, y: Any) -> float:
    """Return the seconds of all epochs but the first, as one of PyTorch's ranks sees them."""
    warnings.filterwarnings("ignore", "When period is 1")
    net: nn.Module = build(Model(name=model), (1, 28, 28), 10, seed=0).to(memory_format=layout)
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    if kind == "ddp":
        net = DistributedDataParallel(net)
    else:
        optimizer = PostLocalSGDOptimizer(optim=optimizer, averager=PeriodicModelAverager(period=1, warmup_steps=0))
    mine = torch.arange(rank, len(x), workers)

    def epoch() -> float:
        dist.barrier()
        start = perf_counter()
        for rows in batches(mine[torch.randperm(len(mine))], BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x.index_select(0, rows)), y.index_select(0, rows)).backward()
            optimizer.step()
        return perf_counter() - start

    epoch()
    return sum(epoch() for _ in range(EPOCHS - 1))


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("model", "workers", "way", "samples/s: median, quartiles", "of the limit", "Tenfold is faster by")
    for row in rows:
        speeds = row["samples_per_second"]
        middle = {name: statistics.median(listed) for name, listed in speeds.items()}
        for name, listed in speeds.items():
            table.add_row(
                row["model"],
                str(row["workers"]),
                name,
                spread(listed, ",.0f"),
                f"{middle[name] / middle['limit']:.0%}",
                f"{middle['tenfold'] / middle[name]:.2f}x" if name not in ("tenfold", "limit") else "",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
