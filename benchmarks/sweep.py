"""Times a sweep over learning rates whose trials step together, against the same trials one after another.

    python benchmarks/sweep.py --trials 64 --device cuda --data digits mnist --json sweep.json

Both sweeps are whole calls of `tenfold.sweep` in one process and take turns, after a short one that does not count:
they load the data, train and evaluate the same trials, and record each as a run with its weights and predictions. The
weights of both are compared. How long training alone takes, without start, evaluation and recording, and how long
recording alone, is measured, too: with data as small as digits most of the time is neither.
"""

import statistics
import tempfile
import time
from functools import partial
from itertools import chain
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from support.options import make_parser, write_json
from support.turns import spread, take_turns

import tenfold
from tenfold.runs import Store

FIELDS = ("model", "epochs", "device", "threads", "limit")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--data", nargs="+", default=["digits"], help="one or several, each in turn")
    parser.add_argument("--limit", type=int, help="samples to train on")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    results = []
    for data in arguments.data:
        fields: dict[str, Any] = {name: getattr(arguments, name) for name in FIELDS}
        fields |= {"data": data, "validation_fraction": 0.1}
        results.append(measure(fields, arguments.trials, arguments.repeats))
        show(results[-1])
    write_json(arguments.json, results)


def measure(fields: dict[str, Any], trials: int, repeats: int) -> dict[str, Any]:
    recording: list[float] = []
    ways = {
        name: partial(seconds_of, fields, trials, stacked, recording if stacked else [])
        for name, stacked in (("one after another", False), ("together", True))
    }
    for stacked in (False, True):  # prepares kernels and files
        seconds_of(fields, 4, stacked, [])
    seconds = {name: [list(pair) for pair in pairs] for name, pairs in take_turns(ways, repeats).items()}
    results = {"trials": trials, **fields, "seconds": seconds, "recording": recording}
    return results | {"difference": largest_difference(fields, min(trials, 8))}


def seconds_of(fields: dict[str, Any], trials: int, stacked: bool, recording: list[float]) -> tuple[float, float]:
    """Return the seconds of a whole sweep, and those of them that are training."""
    import_runs = Store.import_runs

    def timed(store: Store, runs: Any) -> list[int]:
        began = time.perf_counter()
        numbers = import_runs(store, runs)
        recording.append(time.perf_counter() - began)
        return numbers

    Store.import_runs = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            done = sweep(fields, trials, stacked, folder)
            return time.perf_counter() - began, done.run.result["seconds"]
    finally:
        Store.import_runs = import_runs  # type: ignore[method-assign]


def sweep(fields: dict[str, Any], trials: int, stacked: bool, folder: str) -> tenfold.Sweep:
    space: dict[str, Any] = {"lr": "1e-3:1e-1:log", "sampler": "random", "trials": trials}
    return tenfold.sweep(**fields, **space, stacked=stacked, runs=folder, progress=False)


def largest_difference(fields: dict[str, Any], trials: int) -> float:
    """Return the largest difference between the weights of the same trials, trained in both ways."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        pairs = [sweep(fields, trials, stacked, folder) for stacked, folder in ((False, one), (True, other))]
        runs = zip(*([way.run.other(trial.run) for trial in way.trials] for way in pairs), strict=True)
        return max(
            float(torch.max(torch.abs(alone.weights[name] - tensor)))
            for alone, together in runs
            for name, tensor in together.weights.items()
        )


def show(results: dict[str, Any]) -> None:
    table = Table(title=f"{results['trials']} trials of {results['model']} on {results['data']}, {results['device']}")
    for name in ("trials", "whole sweep", "ratio", "training", "ratio"):
        table.add_column(name, justify="left" if name == "trials" else "right")
    times = {name: list(zip(*pairs, strict=True)) for name, pairs in results["seconds"].items()}
    first = [statistics.median(kind) for kind in times["one after another"]]
    for name, kinds in times.items():
        cells = [
            (spread(kind, ".2f", " s"), f"{base / statistics.median(kind):.1f}x")
            for kind, base in zip(kinds, first, strict=True)
        ]
        table.add_row(name, *chain(*cells))
    table.add_row("of these, recording", spread(results["recording"], ".2f", " s"))
    Console().print(table, f"largest difference between weights: {results['difference']:.1e}", sep="\n")


if __name__ == "__main__":
    main()
