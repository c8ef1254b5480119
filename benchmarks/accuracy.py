"""How accurate divided training is: LeNet-5 on MNIST, equal samples, by workers, strategy and sync_every.

    python benchmarks/accuracy.py --json accuracy.json

The first rows are what a user gets who says only `workers=N`; the others name strategy and sync_every. Every setting
runs with several seeds; "against one worker" is the difference of the means in points. What is recorded in the runs
folder is not run again.
"""

import argparse
import json
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table

import tenfold
from tenfold.machine import cores
from tenfold.report.rows import Row

STRATEGIES = ("allreduce", "butterfly", "ring", "hopping-ring")
SYNCS = (1, 16, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES))
    parser.add_argument("--sync-every", type=int, nargs="*", default=list(SYNCS))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    common = {"epochs": arguments.epochs, "repeats": arguments.seeds, "runs": arguments.runs, "watch": say}
    base = tenfold.Experiment(model="lenet5", data="mnist", threads=None if cores.budget() < 4 else 1)
    rows = [(True, row) for row in tenfold.compare(base, workers=arguments.workers, **common).rows]
    several = [count for count in arguments.workers if count > 1]
    if arguments.strategies and arguments.sync_every and several:
        grid = {"workers": several, "strategy": arguments.strategies, "sync_every": arguments.sync_every}
        rows += [(False, row) for row in tenfold.compare(base, **grid, **common).rows]
    show(rows)
    if arguments.json:
        records = [{"setting": setting(*one), "accuracies": one[1].accuracy.values} for one in rows]
        arguments.json.write_text(json.dumps(records, indent=2))


def say(turn: object) -> None:
    if not turn.begins:  # type: ignore[attr-defined]
        print(f"{turn.place}/{turn.count}  {turn.label}: {turn.error or f'{turn.run.accuracy:.2%}'}", flush=True)  # type: ignore[attr-defined]


def setting(defaults: bool, row: Row) -> tuple[str, str, str]:
    division = row.runs[0].experiment.division
    named = ("defaults", "defaults") if defaults else (division.strategy, str(division.sync_every))
    return str(row.workers), *named


def show(rows: list[tuple[bool, Row]]) -> None:
    single = next((statistics.fmean(row.accuracy.values) for _, row in rows if row.workers == 1), None)
    table = Table("workers", "strategy", "sync_every", "accuracy, each seed", "mean", "against one worker")
    for defaults, row in rows:
        mean = statistics.fmean(row.accuracy.values)
        table.add_row(
            *setting(defaults, row),
            ", ".join(f"{value:.2%}" for value in row.accuracy.values),
            f"{mean:.2%}",
            f"{(mean - single) * 100:+.2f} points" if single is not None else "",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
