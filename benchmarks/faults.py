"""Measures the throughput that is kept when workers are killed while they train: `on_failure = "continue"`.

    python benchmarks/faults.py --json faults.json

LeNet-5 on MNIST with more workers than cores. Runs with and without faults take turns in one process tree. In those
with faults, a random worker is killed on a seeded schedule, from the end of the first epoch on. Throughput is the
samples learnt from after the first epoch divided by the time until the last epoch ends, evaluation included; samples
that a lost worker had left are not counted.

The rate of faults: a public run of torchft had 62 faults in 30 minutes, one every 29 s, among 32 replicas on a machine
with 16 cores, and kept 97.7 % of the throughput. A fault costs the start of one process, whatever the number of cores,
so the same rate on a machine with 2 cores is 8 times as hard; it is the default.
"""

import argparse
import json
import multiprocessing.forkserver
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

import tenfold
from tenfold.runs import EpochEnded, Event

PUBLISHED = 0.977


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, help="training samples; default: all of MNIST")
    parser.add_argument("--every", type=float, default=29.0, help="seconds between two faults, on average")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [measure(workers, arguments) for workers in arguments.workers]
    show(rows, arguments.every)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def measure(workers: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train without and with faults, in turns."""
    rng = random.Random(arguments.seed)
    row: dict[str, Any] = {"workers": workers, "without": [], "with": [], "accuracy": {"without": [], "with": []}}
    row |= {"faults": 0, "seconds": 0.0, "replaced": 0}
    wait = 0.0
    for _ in range(arguments.repeats):
        for name in ("without", "with"):
            killer = Killer(rng, arguments.every, wait) if name == "with" else None
            speed, run, seconds = train(workers, arguments, killer)
            row[name].append(speed)
            row["accuracy"][name].append(run.metrics["accuracy"])
            lost = len(run.result["lost"])
            print(
                f"{workers} workers, {name} faults: {speed:,.0f} samples/s in {seconds:.0f} s, {lost} lost", flush=True
            )
            if killer is not None:
                wait = killer.left  # the schedule goes on in the next run
                row["faults"] += killer.faults
                row["seconds"] += seconds
                row["replaced"] += sum(loss["joined"] is not None for loss in run.result["lost"])
    return row


def train(workers: int, arguments: argparse.Namespace, killer: "Killer | None") -> tuple[float, tenfold.Run, float]:
    """Train once; return the samples per second after the first epoch, the run, and how many seconds these were."""
    ends: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, EpochEnded):
            ends.append(time.monotonic())
            if killer is not None and len(ends) == 1:
                killer.start()
            elif killer is not None and len(ends) == arguments.epochs:
                killer.stop()

    with tempfile.TemporaryDirectory() as runs:
        run = tenfold.train(
            model="lenet5",
            data="mnist",
            limit=arguments.limit,
            epochs=arguments.epochs,
            workers=workers,
            threads=1,
            oversubscribe=True,
            on_failure="continue",
            replacements=1000,
            seed=0,
            runs=runs,
            listen=listen,
        )
        seconds = ends[-1] - ends[0]
        first_epoch = sum(run.facts["shards"]["samples"])  # in which there were no faults
        return (run.result["samples"] - first_epoch) / seconds, run, seconds


class Killer(threading.Thread):
    """Kills a random worker now and then."""

    def __init__(self, rng: random.Random, every: float, wait: float) -> None:
        super().__init__(daemon=True)
        self.rng, self.every = rng, every
        self.left = wait or self._draw()
        self.faults = 0
        self._stopped = threading.Event()

    def _draw(self) -> float:
        return self.every * self.rng.uniform(0.5, 1.5)

    def run(self) -> None:
        """Kill until `stop` is called."""
        while True:
            began = time.monotonic()
            if self._stopped.wait(self.left):
                self.left = max(0.01, self.left - (time.monotonic() - began))
                return
            os.kill(self.rng.choice(worker_pids()), signal.SIGKILL)
            self.faults += 1
            self.left = self._draw()

    def stop(self) -> None:
        """End the faults."""
        self._stopped.set()


def worker_pids() -> list[int]:
    """Return the processes that train now."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return sorted(child.pid for child in psutil.Process(server).children() if child.status() != psutil.STATUS_ZOMBIE)


def show(rows: list[dict[str, Any]], every: float) -> None:
    table = Table(title=f"LeNet-5 on MNIST, a worker killed every {every:g} s; medians, (range)")
    for name in ("workers", "faults", "samples/s without", "with faults", "kept", "accuracy without", "with faults"):
        table.add_column(name, justify="right")
    for row in rows:
        kept = statistics.median(row["with"]) / statistics.median(row["without"])
        accuracy = {name: 100 * statistics.mean(values) for name, values in row["accuracy"].items()}
        table.add_row(
            str(row["workers"]),
            f"{row['faults']} in {row['seconds']:.0f} s",
            *(_spread(row[name]) for name in ("without", "with")),
            f"{100 * kept:.1f} % (torchft: {100 * PUBLISHED:.1f} %)",
            f"{accuracy['without']:.2f} %",
            f"{accuracy['with']:.2f} % ({accuracy['with'] - accuracy['without']:+.2f})",
        )
    Console().print(table)


def _spread(speeds: list[float]) -> str:
    return f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f})"


if __name__ == "__main__":
    main()
