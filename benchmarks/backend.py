"""Times the process-group backend against gloo: unmodified DDP on four models, and all_reduce alone.

    python benchmarks/backend.py --json backend.json

Both backends run in the same processes of one thread each, taking turns; the time of a turn is that of the slowest
rank. A ratio is gloo's time by Tenfold's within one turn, so that a machine that slows down slows both.
"""

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from support.gloo_ranks import run_ranks
from support.options import make_parser, write_json
from support.turns import spread, take_turns
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import tenfold
from tenfold.board.demo_tasks import Lstm, tabular
from tenfold.models.networks import cnn, lenet5

SIZES = {"0.25 MB": 61_706, "4.8 MB": 1_200_000, "100 MB": 25_000_000}
CALLS = {"0.25 MB": 20, "4.8 MB": 8, "100 MB": 2}


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "LeNet-5": (lambda: lenet5((1, 28, 28), 10), (64, 1, 28, 28), 20),
    "cnn": (lambda: cnn((1, 28, 28), 10), (32, 1, 28, 28), 4),
    "tabular MLP": (tabular, (32, 64), 40),
    "LSTM": (Lstm, (32, 20, 32), 15),
}
"""For each the network, the shape of a batch, and the steps of a turn."""


def main() -> None:
    parser = make_parser(__doc__)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=cores, help="number of ranks (default: the cores)")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose name contains one of these")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each backend")
    options = parser.parse_args()
    answers = run_ranks(options.workers, measure, options.repeats, tuple(options.only))
    rows = max(answers, key=len)
    print(f"\n{options.workers} ranks on {cores} cores, {options.repeats} turns: median [quartiles]\n")
    print(f"{'':<22}{'gloo':>28}{'tenfold':>28}{'gloo / tenfold':>24}")
    for name, unit, theirs, ours, ratios in rows:
        form = ".0f" if unit == "samples/s" else ".3f"
        cells = [f"{spread(values, form)} {unit}" for values in (theirs, ours)]
        print(f"{name:<22}{cells[0]:>34}{cells[1]:>34}{spread(ratios, '.2f', 'x'):>26}")
    write_json(options.json, {"cores": cores, "workers": options.workers, "torch": torch.__version__, "rows": rows})


def measure(rank: int, ranks: int, repeats: int, only: tuple[str, ...]) -> list[Any]:
    """Return a row for each model and size on rank 0, nothing elsewhere."""
    assert tenfold.backend
    groups = {name: dist.new_group(backend=name) for name in ("gloo", "tenfold")}
    rows = []
    for name, (make, shape, steps) in MODELS.items():
        if not any(word in name for word in only):
            continue
        ways = {backend: training(make, shape, steps, group, rank) for backend, group in groups.items()}
        seconds = timed(ways, repeats)
        samples = ranks * shape[0] * steps
        rates = [[samples / second for second in seconds[backend]] for backend in groups]
        rows.append((name, "samples/s", *rates, ratios(seconds)))
    for name, numel in SIZES.items():
        if not any(word in f"all_reduce {name}" for word in only):
            continue
        seconds = timed({backend: summing(numel, CALLS[name], group) for backend, group in groups.items()}, repeats)
        milliseconds = [[1e3 * second / CALLS[name] for second in seconds[backend]] for backend in groups]
        rows.append((f"all_reduce {name}", "ms", *milliseconds, ratios(seconds)))
    return rows if rank == 0 else []


def training(
    make: Callable[[], nn.Module], shape: tuple[int, ...], steps: int, group: Any, rank: int
) -> Callable[[], None]:
    torch.manual_seed(0)
    model = DistributedDataParallel(make(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(*shape, generator=generator)
    labels = torch.randint(0, 10, shape[:1], generator=generator)

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()

    return train


def summing(numel: int, calls: int, group: Any) -> Callable[[], None]:
    tensor = torch.zeros(numel)

    def add() -> None:
        for _ in range(calls):
            dist.all_reduce(tensor, group=group)

    return add


def timed(ways: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of the slowest rank in each turn; the first does not count."""

    def time(way: Callable[[], None]) -> float:
        dist.barrier()
        started = perf_counter()
        way()
        return perf_counter() - started

    found = take_turns({name: lambda way=way: time(way) for name, way in ways.items()}, 1 + repeats)
    seconds = torch.tensor(list(found.values()), dtype=torch.float64)[:, 1:].contiguous()
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return dict(zip(ways, seconds.tolist(), strict=True))


def ratios(seconds: dict[str, list[float]]) -> list[float]:
    return [theirs / ours for theirs, ours in zip(seconds["gloo"], seconds["tenfold"], strict=True)]


if __name__ == "__main__":
    main()
