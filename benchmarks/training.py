"""Times training on all cores, one worker a core, averaging at every step: Tenfold against PyTorch's own.

    python benchmarks/training.py --json training.json

- tenfold: all-reduce of weights in shared memory, at every step
- overlapped: averages of pairs (butterfly) at every step, each of which takes place during the next step
- limit: the same workers, who never talk
- ddp: DistributedDataParallel over gloo, which averages gradients at every step
- postlocal: torch's PostLocalSGDOptimizer, which averages weights over gloo at every step
One thread each, the same model, batch, data and optimizer; peers index tensors and fuse their optimizer as we do.
Their networks are laid out as torch makes them; with --same-layout they get Tenfold's, channels last, so that only the
averaging differs. All take turns; a turn is five epochs after one that does not count, its time the slowest worker's.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

import tenfold
from tenfold.data import batches
from tenfold.experiment import Model
from tenfold.machine import cores
from tenfold.models import build

STEPS, EPOCHS = {"lenet5": 60, "cnn": 12}, 6
"""Steps in an epoch, and epochs, of which the first does not count."""
BATCH, RATE, MOMENTUM = 64, 0.02, 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", help="default: all cores that may be used")
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--same-layout", action="store_true", help="give the peers channels last, too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    layout = torch.channels_last if arguments.same_layout else torch.contiguous_format
    rows = []
    for workers in arguments.workers or [cores.budget()]:
        for model in arguments.models:
            speeds = take_turns(model, workers, layout, arguments.repeats)
            rows.append({"model": model, "workers": workers, "samples_per_second": speeds})
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def take_turns(model: str, workers: int, layout: torch.memory_format, repeats: int) -> dict[str, list[float]]:
    samples = STEPS[model] * BATCH * workers
    x, y = torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
    ways: dict[str, Callable[[], float]] = {
        "tenfold": lambda: ours(model, workers, x, y, "allreduce"),
        "overlapped": lambda: ours(model, workers, x, y, "butterfly", overlap=True),
        "limit": lambda: ours(model, workers, x, y, "none"),
        "ddp": lambda: peers("ddp", model, workers, layout, x, y),
        "postlocal": lambda: peers("postlocal", model, workers, layout, x, y),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, turn in ways.items():
            speeds[name].append(samples * (EPOCHS - 1) / turn())
    return speeds


def ours(model: str, workers: int, x: torch.Tensor, y: torch.Tensor, strategy: str, *, overlap: bool = False) -> float:
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
            overlap=overlap,
            lr_scaling="none",
            engine="processes",
            pin="compact",
            runs=folder,
        )
        return run.history[-1]["seconds"] - run.history[0]["seconds"]


def peers(kind: str, model: str, workers: int, layout: Any, x: torch.Tensor, y: torch.Tensor) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("forkserver")
    answers = context.SimpleQueue()
    x.share_memory_()
    y.share_memory_()
    crew = [
        context.Process(target=peer, args=(rank, kind, model, workers, layout, x, y, port, answers))
        for rank in range(workers)
    ]
    for process in crew:
        process.start()
    times = [answers.get() for _ in crew]
    for process in crew:
        process.join()
    return max(times)


def peer(rank: int, kind: str, model: str, workers: int, layout: Any, x: Any, y: Any, port: int, answers: Any) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "When period is 1")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=workers)
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
    answers.put(sum(epoch() for _ in range(EPOCHS - 1)))
    dist.barrier()
    dist.destroy_process_group()


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("model", "workers", "way", "samples/s, median [quartiles]", "of the limit", "Tenfold is faster by")
    for row in rows:
        speeds = row["samples_per_second"]
        middle = {name: statistics.median(listed) for name, listed in speeds.items()}
        for name, listed in speeds.items():
            low, _, high = statistics.quantiles(listed if len(listed) > 1 else listed * 2, n=4)
            table.add_row(
                row["model"],
                str(row["workers"]),
                name,
                f"{middle[name]:,.0f} [{low:,.0f}-{high:,.0f}]",
                f"{middle[name] / middle['limit']:.0%}",
                f"{middle['tenfold'] / middle[name]:.2f}x" if name not in ("tenfold", "overlapped", "limit") else "",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    mp.set_forkserver_preload(["torch", "tenfold.workers.pool.worker_process"])
    main()
