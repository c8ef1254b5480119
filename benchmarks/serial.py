"""Times one worker against the PyTorch loop that people copy: a DataLoader over a TensorDataset, the same model, batch
and threads.

    python benchmarks/serial.py --json serial.json

Both train in this process, taking turns, on the same samples; a turn is one epoch after one that does not count.
Tenfold's time is what `run.seconds` says, with everything recorded and progress listened to. "bare" is Tenfold's
replica fed with the same batches, without events, clocks, rounds or records: what these add is the overhead.
"""

import io
import statistics
import tempfile
from collections.abc import Callable
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from support.options import make_parser, write_json
from support.turns import quartiles, take_turns
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tenfold
from tenfold.data import Tensors, batches, load
from tenfold.errors import DataError
from tenfold.experiment import Experiment, Model
from tenfold.machine import cores
from tenfold.models.networks import build
from tenfold.reports.progress import RunProgress
from tenfold.training import Replica

SETTINGS = {"lenet5": 12_800, "cnn": 2_560, "mlp": 25_600}
"""Samples in an epoch of each model."""
BATCH, RATE, MOMENTUM = 64, 0.05, 0.9
SGD = {"optimizer": "sgd", "lr": RATE, "momentum": MOMENTUM}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", help="default: 1 and all cores that may be used")
    parser.add_argument("--models", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    arguments = parser.parse_args()
    x, y = samples(max(SETTINGS.values()))
    rows = []
    for threads in arguments.threads or sorted({1, cores.budget()}):
        torch.set_num_threads(threads)
        for model in arguments.models:
            count = SETTINGS[model]
            data = x[:count], y[:count]
            ways = {
                "tenfold": ours(model, threads, *data),
                "copied": copied_loop(model, *data),
                "bare": bare(model, *data),
            }
            rows.append({"model": model, "threads": threads, **summary(take_turns(ways, arguments.repeats), count)})
    show(rows)
    write_json(arguments.json, rows)


def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        train = load("mnist", limit=count).train
        return train.x, train.y  # type: ignore[attr-defined]
    except DataError:
        print("no MNIST here: random images of the same shape instead")
        return torch.randn(count, 1, 28, 28), torch.randint(10, (count,))


def network(model: str) -> nn.Module:
    return build(Model(name=model), (1, 28, 28), 10, seed=0)


def ours(model: str, threads: int, x: torch.Tensor, y: torch.Tensor) -> Callable[[], float]:
    data = {"train": (x, y), "test": (x[:BATCH], y[:BATCH])}
    experiment = Experiment(model=model, data=data, epochs=2, batch_size=BATCH, **SGD, threads=threads)

    def turn() -> float:
        silent = Console(file=io.StringIO())
        with tempfile.TemporaryDirectory() as folder, RunProgress(experiment, console=silent) as progress:
            first, second = tenfold.train(experiment, runs=folder, listen=progress).history
        return second["seconds"] - first["seconds"]

    return turn


def copied_loop(model: str, x: torch.Tensor, y: torch.Tensor) -> Callable[[], float]:
    net, criterion = network(model), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)

    def epoch() -> float:
        start, running = perf_counter(), 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(net(inputs), targets)
            loss.backward()
            optimizer.step()
            running += loss.item()
        return perf_counter() - start

    return lambda: (epoch(), epoch())[1]


def bare(model: str, x: torch.Tensor, y: torch.Tensor) -> Callable[[], float]:
    training = Experiment(**SGD, batch_size=BATCH).training
    laid_out = network(model).to(memory_format=torch.channels_last)
    replica = Replica(laid_out, training, nn.functional.cross_entropy, steps_per_epoch=len(x) // BATCH)
    part = Tensors(x, y)

    def epoch() -> float:
        start = perf_counter()
        for inputs, targets in part.batches(batches(torch.randperm(len(x)), BATCH)):
            replica.step(inputs, targets)
        return perf_counter() - start

    return lambda: (epoch(), epoch())[1]


def summary(times: dict[str, list[float]], samples: int) -> dict[str, object]:
    ratios = [copied / own for own, copied in zip(times["tenfold"], times["copied"], strict=True)]
    overheads = [own / alone - 1 for own, alone in zip(times["tenfold"], times["bare"], strict=True)]
    return {
        "tenfold": samples / statistics.median(times["tenfold"]),
        "copied": samples / statistics.median(times["copied"]),
        "ratio": quartiles(ratios),
        "overhead": quartiles(overheads),
    }


def show(rows: list[dict[str, object]]) -> None:
    table = Table("model", "threads", "Tenfold", "copied loop", "ratio: median, quartiles", "over the bare replica")
    for row in rows:
        low, middle, high = row["ratio"]  # type: ignore[misc]
        less, usual, more = row["overhead"]  # type: ignore[misc]
        table.add_row(
            str(row["model"]),
            str(row["threads"]),
            f"{row['tenfold']:,.0f} samples/s",
            f"{row['copied']:,.0f} samples/s",
            f"{middle:.2f}x [{low:.2f}-{high:.2f}]",
            f"{usual:+.1%} [{less:+.1%} to {more:+.1%}]",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
