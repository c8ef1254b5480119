"""Times networks such as people train, at the same global batch and with the same optimizer on all sides.

    python benchmarks/models.py --json models.json
    python benchmarks/models.py --models "tabular MLP" --repeats 9
    python benchmarks/models.py --device cuda --batch 512  # eager, compiled, and Tenfold with and without compile

On a CPU:
- one process: PyTorch's usual loop with all threads
- ddp: DistributedDataParallel over gloo, at the best of several ranks x threads (tried once before)
- tenfold: one worker per core, gradients averaged at every step, as by default
- weights: the same, weights averaged at every step
- every 16: the same, weights averaged at every 16th step
- one process and tenfold in bf16, where the processor computes with it

All use SGD with momentum, fused optimizers, and tensors indexed by a permutation, and take turns. Speeds are those of
all epochs but the first. "To the same loss" are the training seconds until the loss of 512 samples that are not trained
on is what the worst way has reached in the end.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from support.gloo_ranks import run_ranks
from support.options import make_parser, write_json
from support.people_models import TASKS, Task
from support.turns import spread, take_turns
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import tenfold
from tenfold.data import batches
from tenfold.machine import cores
from tenfold.machine.metadata import has_bf16, instruction_sets

EPOCHS, MOMENTUM, PER_CORE, HELD_OUT = 4, 0.9, 32, 512
OURS = "tenfold"
Progress = list[tuple[float, float]]
"""After each epoch, the training seconds so far and the loss of the held-out samples."""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--batch", type=int, help=f"the global batch; default: {PER_CORE} per core")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"], help="of --device cuda")
    parser.add_argument("--steps", type=float, default=1.0, help="factor on the steps of an epoch")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("--device cuda needs a GPU that torch can use, and there is none; see `tenfold doctor`")
        return
    batch, rows = arguments.batch or PER_CORE * cores.budget(), {}
    for name in arguments.models:
        task = TASKS[name]
        samples = batch * max(4, round(task.steps * arguments.steps))
        x, y = task.data(samples + HELD_OUT)
        if arguments.device == "cuda":
            ways = gpu_ways(task, x.cuda(), y.cuda(), batch, arguments.precision)
        else:
            ways = cpu_ways(task, x.share_memory_(), y.share_memory_(), batch)
        turns = take_turns(ways, arguments.repeats)
        speeds = {
            way: [samples * (EPOCHS - 1) / (item[-1][0] - item[0][0]) for item in each] for way, each in turns.items()
        }
        rows[name] = {"samples_per_second": speeds, "seconds_to_the_same_loss": seconds_to_loss(turns)}
        show(name, **rows[name])
    write_json(arguments.json, {"batch": batch, "cores": cores.budget(), "models": rows})


def cpu_ways(task: Task, x: Tensor, y: Tensor, batch: int) -> dict[str, Callable[[], Progress]]:
    count = cores.budget()
    ranks = {each for each in (count, count // 2, count // 4) if each > 1}
    tried = {each: run_ranks(each, ddp_rank, task, x, y, batch, count // each)[0][-1][0] for each in ranks}
    best = min(tried, key=lambda each: tried[each])
    one = partial(one_process, task, x, y, batch, threads=count)
    ways = {
        "one process": one,
        f"ddp {best} x {count // best}": lambda: run_ranks(best, ddp_rank, task, x, y, batch, count // best)[0],
        OURS: partial(ours, task, x, y, batch, average="gradients"),
        "weights": partial(ours, task, x, y, batch, average="weights", sync_every=1),
        "every 16": partial(ours, task, x, y, batch, average="weights", sync_every=16),
    }
    if has_bf16(instruction_sets()):
        ways["one process, bf16"] = partial(one, precision="bf16")
        ways[f"{OURS}, bf16"] = partial(ways[OURS], precision="bf16")
    return ways


def gpu_ways(task: Task, x: Tensor, y: Tensor, batch: int, precision: str) -> dict[str, Callable[[], Progress]]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    return {
        "eager": partial(one_process, task, x, y, batch, precision=precision),
        "compiled": partial(one_process, task, x, y, batch, precision=precision, compiled=True),
        OURS: partial(ours, task, x, y, batch, device="cuda", precision=precision),
        f"{OURS}, compiled": partial(ours, task, x, y, batch, device="cuda", precision=precision, compile=True),
    }


def ours(task: Task, x: Tensor, y: Tensor, batch: int, **fields: Any) -> Progress:
    workers = 1 if "device" in fields else cores.budget()
    place: dict[str, Any] = {"engine": "processes", "threads": 1} if workers > 1 else {}
    torch.manual_seed(0)
    run = tenfold.train(
        model=task.make(),
        data={"train": (x[:-HELD_OUT], y[:-HELD_OUT]), "test": (x[-HELD_OUT:], y[-HELD_OUT:])},
        epochs=EPOCHS,
        batch_size=batch // workers,
        optimizer="sgd",
        lr=task.lr,
        momentum=MOMENTUM,
        schedule="constant",
        lr_scaling="none",
        workers=workers,
        **place | fields,
    )
    return [(row["seconds"], row["test_loss"]) for row in run.history]


def one_process(
    task: Task,
    x: Tensor,
    y: Tensor,
    batch: int,
    *,
    threads: int | None = None,
    precision: str = "fp32",
    compiled: bool = False,
) -> Progress:
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = task.make().to(x.device)
    called = torch.compile(network, mode="reduce-overhead") if compiled else network
    return usual_loop(called, network, task, x, y, torch.arange(len(x) - HELD_OUT), batch, precision)


def ddp_rank(rank: int, ranks: int, task: Task, x: Tensor, y: Tensor, batch: int, threads: int) -> Progress:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = task.make()
    mine = torch.arange(rank, len(x) - HELD_OUT, ranks)
    return usual_loop(DistributedDataParallel(network), network, task, x, y, mine, batch // ranks, "fp32")


def usual_loop(
    called: Any, network: nn.Module, task: Task, x: Tensor, y: Tensor, samples: Tensor, batch: int, precision: str
) -> Progress:
    optimizer = torch.optim.SGD(network.parameters(), lr=task.lr, momentum=MOMENTUM, fused=True)
    device, seconds, progress = x.device, 0.0, []

    def loss_of(net: Any, rows: Any) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            return nn.functional.cross_entropy(net(x[rows]), y[rows])

    for _ in range(EPOCHS):
        order = samples[torch.randperm(len(samples))].to(device)
        if dist.is_initialized():
            dist.barrier()
        started = perf_counter()
        network.train()
        for rows in batches(order, batch):
            optimizer.zero_grad()
            loss_of(called, rows).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds += perf_counter() - started
        network.eval()
        with torch.no_grad():
            progress.append((seconds, float(loss_of(network, slice(-HELD_OUT, None)))))
    return progress


def seconds_to_loss(turns: dict[str, list[Progress]]) -> dict[str, list[float]]:
    """Return for each way and turn the seconds to the highest of all last losses, interpolated between epochs."""
    found: dict[str, list[float]] = {way: [] for way in turns}
    for each in zip(*turns.values(), strict=True):
        goal = max(progress[-1][1] for progress in each)
        for way, progress in zip(found, each, strict=True):
            found[way].append(_reached(progress, goal))
    return found


def _reached(progress: Progress, goal: float) -> float:
    seconds, losses = np.array(progress).T
    lowest = np.minimum.accumulate(losses)
    at = int(np.argmax(lowest <= goal))
    if at == 0:
        return float(seconds[0])
    share = (lowest[at - 1] - goal) / (lowest[at - 1] - lowest[at])
    return float(seconds[at - 1] + share * (seconds[at] - seconds[at - 1]))


def show(
    name: str, samples_per_second: dict[str, list[float]], seconds_to_the_same_loss: dict[str, list[float]]
) -> None:
    table = Table(
        name, "samples/s", "Tenfold is faster by", "seconds to the same loss", "Tenfold is faster by", box=None
    )
    for way, speeds in samples_per_second.items():
        seconds = seconds_to_the_same_loss[way]
        faster = _ratios(samples_per_second[OURS], speeds)
        sooner = _ratios(seconds, seconds_to_the_same_loss[OURS])
        ratios = [spread(each, ".2f", "x") if way != OURS else "" for each in (faster, sooner)]
        table.add_row(way, spread(speeds, ",.0f"), ratios[0], spread(seconds, ".2f"), ratios[1])
    Console(width=140).print(table, "")


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [item / other for item, other in zip(above, below, strict=True)]


if __name__ == "__main__":
    main()
