"""How long it takes to list the runs of a large store.

    python benchmarks/store.py [--runs 10000]

Prints the time of reading the list, of `tenfold runs` (its last 20 as a table, in this process, after the imports), of
finding one run by its title, and of the whole command in a new Python process.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from support.filled_store import fill_store

from tenfold.experiment import Experiment
from tenfold.runs import Run, Store

FACTS = {
    "machine": {"cores": 16, "platform": "Linux", "flags": ["x" * 20] * 40},
    "packages": {"torch": "2.8.0"},
    "data": {"name": "digits", "shape": [64], "outputs": 10, "train": 1437, "test": 360},
}
RESULT = {"metrics": {"accuracy": 0.97, "loss": 0.1}, "seconds": 1.5, "epochs": 3, "times": {"compute": 1.4}}


def list_last(store: Store) -> None:
    """Draw the table of the last 20 runs."""
    import io

    from rich.console import Console

    from tenfold.reports.run_tables import RunsTable

    def no_model(run: Run) -> None:
        raise AssertionError(run)

    runs = [Run(store, row, build=no_model) for row in store.runs()]  # type: ignore[arg-type]
    Console(file=io.StringIO(), width=120).print(RunsTable(runs[-20:]))


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the shortest and the longest of three times."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times), max(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    count = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        store = fill_store(Path(folder), count, [Experiment(model="mlp", data="digits")], FACTS, RESULT)
        command = [sys.executable, "-m", "tenfold", "runs", "--runs", folder]
        list_last(store)  # imports
        figures = {
            "read the list": timed(lambda: store.runs()),
            "`tenfold runs` without imports": timed(lambda: list_last(store)),
            "find one by its title": timed(lambda: store.find(f"run-{count // 2}")),
            "whole command": timed(lambda: subprocess.run(command, check=True, capture_output=True)),
        }
    print(f"{count:,} runs; seconds, shortest and longest of 3")
    for name, (low, high) in figures.items():
        print(f"{name:32}  {low:7.3f}  {high:7.3f}")


if __name__ == "__main__":
    main()
