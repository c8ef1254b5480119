"""Measures the throughput that is kept when workers are killed while they train: `on_failure = "continue"`.

    python benchmarks/faults.py --json faults.json

LeNet-5 on MNIST with more workers than cores. In one training, pairs of epochs with a fault and pairs without take
turns: in the first epoch of a pair with a fault, a random worker is killed at a random moment. Each pair with a fault
is compared with its two neighbors, so that the speed of the machine may change from minute to minute. Throughput is
the samples learned from divided by the time, evaluation and checkpoints included; samples that a lost worker had left
are not counted. The final accuracy is compared with that of a training without faults.

The rate of faults: a public run of torchft had 62 faults in 30 minutes, one every 29 s, among 32 replicas on a machine
with 16 cores, and kept 97.7 % of the throughput. A fault costs the start of one process, whatever the number of cores,
so the same rate on a machine with 2 cores is 8 times as hard; it is the default.
"""

import argparse
import multiprocessing.forkserver
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from support.options import make_parser, write_json
from support.turns import spread

import tenfold
from tenfold.runs.events import EpochEnded, Event, WorkerDropped, WorkerJoined

PUBLISHED = 0.977
PAIR = 2
"""Epochs in which the whole cost of a fault falls."""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--faults", type=int, default=8)
    parser.add_argument("--limit", type=int, help="training samples; default: all of MNIST")
    parser.add_argument("--every", type=float, default=29.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = [measure(workers, arguments) for workers in arguments.workers]
    show(rows, arguments.every)
    write_json(arguments.json, rows)


def measure(workers: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train with faults and without."""
    faults = Faults(arguments.seed, arguments.faults)
    with tempfile.TemporaryDirectory() as runs:
        struck, usual = (train(workers, arguments, listener, runs) for listener in (faults, Faults(0, 0)))
        ends, samples = faults.ends, samples_by_epoch(struck)
    speeds, seconds = [], []
    for first in range(1, len(ends) - PAIR + 1, PAIR):  # the first epoch is for warming up
        seconds.append(ends[first + PAIR - 1] - ends[first - 1])
        speeds.append(sum(samples[first : first + PAIR]) / seconds[-1])
    with_fault = range(1, len(speeds), 2)
    kept = [2 * speeds[pair] / (speeds[pair - 1] + speeds[pair + 1]) for pair in with_fault]
    row = {
        "workers": workers,
        "faults": len(struck.result["lost"]),
        "samples_per_second": speeds[::2],
        "kept": kept,
        "seconds_lost": [(1 - item) * seconds[pair] for item, pair in zip(kept, with_fault, strict=True)],
        "seconds_to_join": [end - begin for begin, end in zip(faults.lost, faults.joined, strict=False)],
        "accuracy": {"without": usual.metrics["accuracy"], "with": struck.metrics["accuracy"]},
    }
    print(
        f"{workers} workers: seconds lost by each fault: {[round(item, 2) for item in row['seconds_lost']]}", flush=True
    )
    return row


def train(workers: int, arguments: argparse.Namespace, faults: "Faults", runs: str) -> tenfold.Run:
    """Train once, for as many epochs as the faults need."""
    return tenfold.train(
        model="lenet5",
        data="mnist",
        limit=arguments.limit,
        epochs=1 + PAIR * (2 * arguments.faults + 1),
        workers=workers,
        threads=1,
        oversubscribe=True,
        on_failure="continue",
        replacements=1000,
        seed=0,
        runs=runs,
        listen=faults,
    )


class Faults:
    """A listener that kills a random worker in the first epoch of every second pair, and knows when epochs ended."""

    def __init__(self, seed: int, count: int) -> None:
        self.rng = random.Random(seed)
        self.left = count
        self.ends: list[float] = []
        self.lost: list[float] = []
        self.joined: list[float] = []

    def __call__(self, event: Event) -> None:
        times = {EpochEnded: self.ends, WorkerDropped: self.lost, WorkerJoined: self.joined}.get(type(event))
        if times is not None:
            times.append(time.monotonic())
        if times is not self.ends:
            return
        done = len(self.ends) - 1
        if self.left and done and done % (2 * PAIR) == PAIR:
            self.left -= 1
            threading.Timer(self.rng.uniform(0, self.ends[-1] - self.ends[-2]), self.strike).start()

    def strike(self) -> None:
        """Kill a worker."""
        os.kill(self.rng.choice(worker_pids()), signal.SIGKILL)


def worker_pids() -> list[int]:
    """Return the processes that train now."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return sorted(child.pid for child in psutil.Process(server).children() if child.status() != psutil.STATUS_ZOMBIE)


def samples_by_epoch(run: tenfold.Run) -> list[int]:
    """Return how many samples the workers have learned from in each epoch."""
    shards, batch = run.metadata["shards"]["samples"], run.experiment.training.samples_per_step
    steps = -(-max(shards) // batch)
    learned = [sum(shards)] * run.result["epochs"]
    for loss in run.result["lost"]:
        until = run.result["steps"] if loss["joined"] is None else loss["joined"]
        for step in range(loss["step"], until):
            epoch, place = divmod(step, steps)
            learned[epoch] -= min(batch, max(0, shards[loss["worker"]] - place * batch))
    return learned


def show(rows: list[dict[str, Any]], every: float) -> None:
    table = Table(title=f"LeNet-5 on MNIST, a worker killed every {every:g} s; medians and quartiles")
    for name in (
        "workers",
        "faults",
        "samples/s",
        "joined after, s",
        "a fault costs, s",
        "kept",
        "accuracy",
        "with faults",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        accuracy = {name: 100 * value for name, value in row["accuracy"].items()}
        kept = 1 - statistics.median(row["seconds_lost"]) / every
        table.add_row(
            str(row["workers"]),
            str(row["faults"]),
            spread(row["samples_per_second"], ",.0f"),
            spread(row["seconds_to_join"], ".2f"),
            spread(row["seconds_lost"], ".2f"),
            f"{100 * kept:.1f} % (torchft: {100 * PUBLISHED:.1f} %)",
            f"{accuracy['without']:.2f} %",
            f"{accuracy['with'] - accuracy['without']:+.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
