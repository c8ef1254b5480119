"""Seconds of training to an accuracy: LeNet-5 on MNIST, each side with the shortest schedule that reaches it.

    python benchmarks/target.py --json target.json

- copied: the PyTorch loop that people copy, with a DataLoader, SGD, a cosine over its epochs, all threads, and the
  learning rate that is soonest with the first seed (--copied-lrs)
- ddp: DistributedDataParallel over gloo, one thread a rank, SGD, with the ranks, batch size and learning rate that are
  soonest with the first seed (--ranks, --batches, --lrs)
- ddp, muon: the same with Tenfold's Muon (--muon-lrs)
- workers: Tenfold, one thread a worker, with the workers and batch size chosen in the same way (--ranks, --batches)
- one worker, sgd: Tenfold with SGD and all threads
- one worker: Tenfold with its defaults and all threads
- a worker per core, sgd: Tenfold with SGD and one thread each, and the learning rate chosen in the same way (--lrs)
- a worker per core: Tenfold with its defaults and one thread each
- gpu: Tenfold on the GPU, where there is one, with the batch size chosen in the same way (--gpu-batches)

For each side the epochs grow from 1 until all seeds reach the target at the end of training. The time is that of
training with these epochs: start-up and evaluation are not in it, on no side. Sides take turns, seed by seed.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from support.gloo_ranks import run_ranks
from support.options import make_parser, write_json
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import tenfold
from tenfold.data import batches, load
from tenfold.experiment import Model, Training
from tenfold.machine import cores
from tenfold.models.networks import build
from tenfold.training.optimizers import make_optimizer

BATCH, MOMENTUM = 64, 0.9
SIDES = (
    "copied",
    "ddp",
    "ddp, muon",
    "one worker, sgd",
    "one worker",
    "a worker per core, sgd",
    "a worker per core",
    "workers",
    "gpu",
)
Trained = tuple[float, float]
"""Accuracy and seconds."""
Side = Callable[[int, int], Trained]
"""Trains with so many epochs and this seed."""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--target", type=float, default=0.99)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most-epochs", type=int, default=8)
    parser.add_argument("--cores", type=int, default=cores.budget())
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument(
        "--ranks", type=int, nargs="+", help="or workers; default: powers of two from 2 up to the cores"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64], help="per rank or worker")
    parser.add_argument("--gpu-batches", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--lrs", type=float, nargs="+", default=[0.02, 0.05, 0.1], help="of several workers with SGD")
    parser.add_argument("--muon-lrs", type=float, nargs="+", default=[0.01, 0.02, 0.04], help="of ddp with Muon")
    parser.add_argument("--copied-lrs", type=float, nargs="+", default=[0.01, 0.02, 0.05])
    arguments = parser.parse_args()
    data = load("mnist")
    train, test = data.train, data.test
    x, y, tests = train.x, train.y, (test.x, test.y)  # type: ignore[attr-defined, union-attr]
    count = arguments.cores
    fixed: dict[str, Side] = {
        "one worker, sgd": partial(ours, workers=1, threads=count, device="cpu", optimizer="sgd"),
        "one worker": partial(ours, workers=1, threads=count, device="cpu"),
        "a worker per core": partial(ours, workers=count, threads=1, device="cpu"),
    }
    ranks = arguments.ranks or [2**k for k in range(1, count.bit_length())] or [1]
    tuned: dict[str, dict[str, Side]] = {
        "copied": {f"copied, lr {lr:g}": partial(copied, x, y, tests, count, lr) for lr in arguments.copied_lrs},
        "ddp": ddp_sides(x, y, tests, ranks, arguments.batches, "sgd", arguments.lrs),
        "ddp, muon": ddp_sides(x, y, tests, ranks, arguments.batches, "muon", arguments.muon_lrs),
        "a worker per core, sgd": {
            f"a worker per core, sgd, lr {lr:g}": partial(
                ours, workers=count, threads=1, device="cpu", optimizer="sgd", lr=lr
            )
            for lr in arguments.lrs
        },
        "workers": {
            f"{n} workers, batch {size}": partial(ours, workers=n, threads=1, device="cpu", batch_size=size)
            for n, size in product(ranks, arguments.batches)
        },
        "gpu": {
            f"gpu, batch {size}": partial(ours, workers=1, device="cuda", batch_size=size)
            for size in (arguments.gpu_batches if torch.cuda.is_available() else [])
        },
    }
    sides = {name: side for name, side in fixed.items() if name in arguments.sides}
    for name, settings in tuned.items():
        if name in arguments.sides and settings:
            soonest = soonest_of(settings, arguments)
            sides[soonest] = settings[soonest]
    results = race(sides, arguments)
    medians = {name: statistics.median(times) for name, (_, times) in results.items()}
    baseline = next((seconds for name, seconds in medians.items() if name.startswith("copied")), None)
    for name, (epochs, times) in results.items():
        ratio = f"{baseline / medians[name]:6.2f}x" if baseline else ""
        spread = f"[{min(times):.2f}-{max(times):.2f}]"
        print(f"{name:<40}{epochs:>3} epochs {medians[name]:8.2f} s {spread}{ratio}")
    write_json(arguments.json, results)


def ddp_sides(
    x: Tensor,
    y: Tensor,
    tests: tuple[Tensor, Tensor],
    ranks: list[int],
    batches: list[int],
    optimizer: str,
    lrs: list[float],
) -> dict[str, Side]:
    return {
        f"ddp, {optimizer}, {n} ranks, batch {size}, lr {lr:g}": partial(ddp, x, y, tests, n, size, optimizer, lr)
        for n, size, lr in product(ranks, batches, lrs)
    }


def soonest_of(settings: dict[str, Side], arguments: argparse.Namespace) -> str:
    """Return the setting with which the first seed reaches the target soonest; nothing is trained for a single one."""
    soonest, best = next(iter(settings)), math.inf
    if len(settings) == 1:
        return soonest
    missing = dict(settings)
    for epochs in range(1, arguments.most_epochs + 1):
        for name, side in list(missing.items()):
            accuracy, seconds = train(name, side, epochs, seed=0)
            if accuracy >= arguments.target and seconds < best:
                soonest, best = name, seconds
            if accuracy >= arguments.target or seconds > best:
                del missing[name]
    return soonest


def race(sides: dict[str, Side], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return for each side the fewest epochs with which all seeds reach the target, and their seconds."""
    arrived: dict[str, Any] = {}
    for epochs in range(1, arguments.most_epochs + 1):
        results: dict[str, list[Trained]] = {name: [] for name in sides if name not in arrived}
        for seed in range(arguments.seeds):
            for name in results:
                if all(accuracy >= arguments.target for accuracy, _ in results[name]):
                    results[name].append(train(name, sides[name], epochs, seed))
        for name, trained in results.items():
            if all(accuracy >= arguments.target for accuracy, _ in trained):
                arrived[name] = epochs, [seconds for _, seconds in trained]
    for name in sides.keys() - arrived.keys():
        print(f"{name}: {arguments.target:.2%} not reached in {arguments.most_epochs} epochs")
    return {name: arrived[name] for name in sides if name in arrived}


def train(name: str, side: Side, epochs: int, seed: int) -> Trained:
    accuracy, seconds = side(epochs, seed)
    print(f"  {name}, {epochs} epochs, seed {seed}: {accuracy:.2%} after {seconds:.2f} s", flush=True)
    return accuracy, seconds


def ours(epochs: int, seed: int, **machine: Any) -> Trained:
    with tempfile.TemporaryDirectory() as folder:
        run = tenfold.train(model="lenet5", data="mnist", epochs=epochs, seed=seed, runs=folder, **machine)
    return float(run.accuracy or 0.0), float(run.seconds or 0.0)


def copied(
    x: Tensor, y: Tensor, tests: tuple[Tensor, Tensor], threads: int, lr: float, epochs: int, seed: int
) -> Trained:
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    net, criterion = build(Model(name="lenet5"), (1, 28, 28), 10, seed=seed), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=MOMENTUM)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    began = perf_counter()
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(net(inputs), targets).backward()
            optimizer.step()
            schedule.step()
    return evaluated(net, tests, perf_counter() - began)


def ddp(
    x: Tensor,
    y: Tensor,
    tests: tuple[Tensor, Tensor],
    ranks: int,
    batch: int,
    optimizer: str,
    lr: float,
    epochs: int,
    seed: int,
) -> Trained:
    for tensor in (x, y, *tests):
        tensor.share_memory_()
    results = run_ranks(ranks, train_rank, x, y, tests, epochs, seed, batch, optimizer, lr)
    return results[0][0], max(seconds for _, seconds in results)


def train_rank(
    rank: int,
    ranks: int,
    x: Any,
    y: Any,
    tests: Any,
    epochs: int,
    seed: int,
    batch: int,
    optimizer_name: str,
    lr: float,
) -> Trained:
    """Train as one rank of DistributedDataParallel."""
    plain = build(Model(name="lenet5"), (1, 28, 28), 10, seed=seed).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net = DistributedDataParallel(plain)
    optimizer = make_optimizer(Training(optimizer=optimizer_name, batch_size=batch), plain, lr)
    steps = epochs * -(-len(x) // (ranks * batch))
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warm, total_iters=warm),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - warm)),
        ],
        [warm],
    )
    generator = torch.Generator().manual_seed(seed)
    dist.barrier()
    began = perf_counter()
    for _ in range(epochs):
        mine = torch.randperm(len(x), generator=generator)[rank::ranks]
        for rows in batches(mine[: len(x) // ranks], batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x.index_select(0, rows)), y.index_select(0, rows)).backward()
            optimizer.step()
            schedule.step()
    return evaluated(plain, tests, perf_counter() - began)


def evaluated(net: nn.Module, tests: tuple[Tensor, Tensor], seconds: float) -> Trained:
    net.eval()
    with torch.no_grad():
        right = sum(
            int((net(a).argmax(1) == b).sum()) for a, b in zip(*(part.split(500) for part in tests), strict=True)
        )
    return right / len(tests[1]), seconds


if __name__ == "__main__":
    main()
