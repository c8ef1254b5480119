"""How long a verb takes from the shell to its end, beside `import torch` alone.

    python benchmarks/startup.py [--repeats 7]

Verbs that only read should answer in under 0.5 s; training the digits for one epoch should take at most 1 s more than
`import torch`. Both goals are about CPU time (user and system, with child processes), which other programs on the
machine change less than the time on the clock; that is shown, too. (On a busy machine training takes more of it as
well: threads that wait for each other spin.) The commands take turns. Times are in seconds.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READING_LIMIT = 0.5
TRAINING_LIMIT = 1.0
TRAIN = "train --model mlp --data digits --epochs 1 --quiet"
READING = ("--help", "runs", "show last", "data list", "data where digits", "schema", "init experiment.toml --force")


def measure(command: list[str], folder: str) -> tuple[float, float]:
    """Run a command and return the CPU time it took, and the time on the clock."""
    environment = os.environ | {"TENFOLD_RUNS": str(Path(folder, "runs"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once, not at every start
    environment["PYTHONPYCACHEPREFIX"] = str(Path(folder, "bytecode"))
    before, used_before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    elapsed, used = time.perf_counter() - before, resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime - used_before.ru_utime - used_before.ru_stime, elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    python = sys.executable
    commands = {"import torch": [python, "-c", "import torch"]}
    commands |= {f"tenfold {verb}": [python, "-m", "tenfold", *verb.split()] for verb in (TRAIN, *READING)}
    with tempfile.TemporaryDirectory() as folder:
        for command in commands.values():  # also makes the run that `show` shows
            measure(command, folder)
        rounds = [{name: measure(command, folder) for name, command in commands.items()} for _ in range(repeats)]
    baseline = statistics.median(times["import torch"][0] for times in rounds)
    print(f"{'command':60} {'cpu':>7} {'spread':>13} {'clock':>7}  goal for cpu")
    for name in commands:
        measured = sorted(times[name][0] for times in rounds)
        median, clock = statistics.median(measured), statistics.median(times[name][1] for times in rounds)
        limit = {"import torch": None, f"tenfold {TRAIN}": baseline + TRAINING_LIMIT}.get(name, READING_LIMIT)
        goal = "" if limit is None else f"{'met' if median <= limit else 'MISSED'} (at most {limit:.2f})"
        print(f"{name:60} {median:7.2f} {measured[0]:6.2f}-{measured[-1]:.2f} {clock:7.2f}  {goal}")


if __name__ == "__main__":
    main()
