"""Times a sweep over learning rates whose trials step together, against the same trials one after another.

    python benchmarks/sweep.py --trials 64 --device cuda --json sweep.json

Both sweeps are whole calls of `tenfold.sweep` in one process and take turns, after a short one that does not count:
they load the data, train and evaluate the same trials, and record each as a run with its weights and predictions. The
weights of both are compared. How long recording the trials takes alone is measured, too.
"""

import tempfile
import time
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from support.options import make_parser, write_json
from support.turns import spread, take_turns

import tenfold
from tenfold.runs import Store


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    names = ("model", "data", "epochs", "device", "threads")
    fields: dict[str, Any] = {name: getattr(arguments, name) for name in names} | {"validation_fraction": 0.1}
    recording: list[float] = []
    ways = {
        name: partial(seconds_of, fields, arguments.trials, stacked, recording if stacked else [])
        for name, stacked in (("one after another", False), ("together", True))
    }
    for stacked in (False, True):  # prepares kernels and files
        seconds_of(fields, 4, stacked, [])
    seconds = take_turns(ways, arguments.repeats)
    results = {"trials": arguments.trials, **fields, "seconds": seconds, "recording": recording}
    results["difference"] = largest_difference(fields, min(arguments.trials, 8))
    show(results)
    write_json(arguments.json, results)


def seconds_of(fields: dict[str, Any], trials: int, stacked: bool, recording: list[float]) -> float:
    import_runs = Store.import_runs

    def timed(store: Store, runs: Any) -> list[int]:
        began = time.perf_counter()
        numbers = import_runs(store, runs)
        recording.append(time.perf_counter() - began)
        return numbers

    Store.import_runs = timed  # type: ignore[method-assign]
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            sweep(fields, trials, stacked, folder)
            return time.perf_counter() - began
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
    seconds = results["seconds"]
    table = Table(title=f"{results['trials']} trials of {results['model']} on {results['data']}, {results['device']}")
    for name in ("trials", "seconds", "ratio"):
        table.add_column(name, justify="left" if name == "trials" else "right")
    alone, together = (sorted(times)[len(times) // 2] for times in seconds.values())
    table.add_row("one after another", spread(seconds["one after another"], ".2f", " s"), "1.0x")
    table.add_row("together", spread(seconds["together"], ".2f", " s"), f"{alone / together:.1f}x")
    table.add_row("of these, recording", spread(results["recording"], ".2f", " s"), "")
    Console().print(table, f"largest difference between weights: {results['difference']:.1e}", sep="\n")


if __name__ == "__main__":
    main()
