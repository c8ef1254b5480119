"""Times the virtual cluster's clock: node-steps per second, and a run on 131,072 nodes.

    python benchmarks/simulator.py --json simulator.json

A node-step is one step of one virtual worker, its share of the rounds included. "alone" draws a run once; "together" is
what a prediction does: several draws go through the clock at once. Rounds are made and timed before the clock is
started, except on 131,072 nodes, whose seconds include everything. With --learning the virtual engine learns, too: the
time of 8 virtual replicas is compared with that of stepping a replica as often.
"""

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from support.options import make_parser, write_json
from support.turns import take_turns

import tenfold
from tenfold.cluster import Cluster, StepTime, Workload, clock_events, run_round_clock
from tenfold.machine import cores
from tenfold.mixing import STRATEGIES

STRATEGIES_SHOWN = ("allreduce", "butterfly", "ring", "hopping-ring", "gossip", "hierarchical", "parameter-server")
MANY = 131_072
STEP_TIME = StepTime(mean=0.01, between_workers=0.05, between_steps=0.1)
NBYTES = 246_824
"""LeNet-5's weights."""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--many-steps", type=int, default=1000, help=f"steps of the run on {MANY:,} nodes; 0: none")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES_SHOWN), choices=list(STRATEGIES))
    parser.add_argument("--learning", action="store_true", help="learn with 8 virtual workers, too")
    options = parser.parse_args()
    figures: dict[str, Any] = {
        "workers": options.workers,
        "rates": [
            {"strategy": name, "sync_every": h, **rates(name, options.workers, options.steps, h, options.repeats)}
            for name in options.strategies
            for h in (1, 16)
        ],
        "many": [
            {"strategy": name, "seconds": whole(name, MANY, options.many_steps)}
            for name in options.strategies
            if options.many_steps
        ],
        "heap": [{"strategy": name, "events": heap(name, 64, 200)} for name in ("downpour", "easgd", "ad-psgd")],
        "learning": learning(options.repeats) if options.learning else None,
    }
    show(figures, options.many_steps)
    write_json(options.json, figures)


def setting(name: str, workers: int, steps: int, sync_every: int = 1) -> dict[str, Any]:
    strategy = STRATEGIES[name]()
    return {
        "workload": Workload(
            workers=workers, steps_per_epoch=steps, strategy=strategy, nbytes=NBYTES, sync_every=sync_every
        ),
        "hardware": Cluster.of(workers, "10gbe").hardware(workers, STEP_TIME),
    }


def rates(name: str, workers: int, steps: int, sync_every: int, repeats: int) -> dict[str, list[float]]:
    """Return node-steps per second [lowest, median, highest], of one draw and of eight together."""
    timed = setting(name, workers, steps, sync_every)
    run_round_clock(**setting(name, workers, min(steps, 100), sync_every))  # rounds are kept once they are made

    def rate(draws: int) -> float:
        started = perf_counter()
        run_round_clock(**timed, repeats=draws)
        return workers * steps * draws / (perf_counter() - started)

    found = take_turns({"alone": partial(rate, 1), "together": partial(rate, 8)}, repeats)
    return {key: [min(all_), statistics.median(all_), max(all_)] for key, all_ in found.items()}


def whole(name: str, workers: int, steps: int) -> float:
    """Return the seconds of one run from nothing to its result."""
    started = perf_counter()
    run_round_clock(**setting(name, workers, steps))
    return perf_counter() - started


def heap(name: str, workers: int, steps: int) -> float:
    """Return events per second of a run without rounds."""
    started = perf_counter()
    count = sum(1 for _ in clock_events(**setting(name, workers, steps)))
    return count / (perf_counter() - started)


def learning(repeats: int) -> dict[str, list[float]]:
    """Return the seconds of an epoch of 8 virtual workers, and of as many steps taken in other ways [each repeat].

    LeNet-5, batch 64. One replica takes all steps, with a thread on every core; or a replica on each core takes its
    share, and they never meet, which is what these cores can do at most. All times are differences of a long and a
    short run, so that start-up is in none; evaluation and a checkpoint of all 8 are in the virtual one.
    """
    samples = 8 * 64 * 150
    x, y = torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
    common = {"data": {"train": (x, y), "test": (x[:64], y[:64])}, "model": "lenet5", "lr": 0.01}
    by_hand = {"groups": [{"count": 8, "step_seconds": 0.01}]}
    room = cores.budget()

    def virtual(**how: Any) -> float:
        return float(tenfold.simulate(workers=8, threads=1, cluster=by_hand, **common, **how).result["simulated_in"])

    def one_replica(**how: Any) -> float:
        return float(tenfold.train(threads=room, **common, **how).seconds)

    def replica_on_each_core(**how: Any) -> float:
        return float(tenfold.train(workers=room, threads=1, strategy="none", **common, **how).seconds)

    def epoch(way: Callable[..., float], folder: str) -> float:
        return way(epochs=2, runs=folder) - way(epochs=1, runs=folder)

    with tempfile.TemporaryDirectory() as folder:
        ways = virtual, one_replica, replica_on_each_core
        return take_turns({way.__name__: partial(epoch, way, folder) for way in ways}, repeats)


def show(figures: dict[str, Any], many_steps: int) -> None:
    console = Console()
    table = Table(
        "strategy", "sync_every", "alone", "8 draws together", title=f"Node-steps/s, N = {figures['workers']}"
    )
    for row in figures["rates"]:
        table.add_row(row["strategy"], str(row["sync_every"]), spread(row["alone"]), spread(row["together"]))
    console.print(table)
    if figures["many"]:
        table = Table("strategy", "seconds", title=f"N = {MANY:,}, {many_steps:,} steps, a round after each")
        for row in figures["many"]:
            table.add_row(row["strategy"], f"{row['seconds']:.1f}")
        console.print(table)
    table = Table("strategy", "events/s", title="Without rounds, N = 64")
    for row in figures["heap"]:
        table.add_row(row["strategy"], f"{row['events']:.3g}")
    console.print(table)
    if figures["learning"]:
        virtual, *others = figures["learning"].items()
        console.print(f"An epoch of 8 virtual workers takes {statistics.median(virtual[1]):.2f} s:")
        for name, seconds in others:
            ratios = [item / other for item, other in zip(virtual[1], seconds, strict=True)]
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            steps = f"as many steps of {name.replace('_', ' ')}"
            console.print(f"  {statistics.median(ratios):.2f}x {steps}, {statistics.median(seconds):.2f} s ({each})")


def spread(values: list[float]) -> str:
    low, median, high = values
    return f"{median:.2g} [{low:.2g}-{high:.2g}]"


if __name__ == "__main__":
    main()
