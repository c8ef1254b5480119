"""The planner against an exhaustive grid: is its choice the soonest, and does it take as long as predicted?

    python benchmarks/plan.py --tasks mlp --seeds 3
    python benchmarks/plan.py --json plan.json

For each task the planner chooses a setting. Then every setting that it chose from (where there are several workers,
those that average gradients) is trained for 1, 2, 3, ... epochs until all seeds reach the target. Two figures count:
the seconds of the choice relative to the soonest setting (goal: at most 1.1), and the error of the predicted training
time of the choice (goal: 15%). Times are training times, without startup and evaluation.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import tenfold
from tenfold.experiment import Experiment
from tenfold.prediction.planning.candidates import candidates_here
from tenfold.prediction.planning.planner import describe_candidate

TASKS: dict[str, tuple[dict[str, Any], float, int]] = {
    "mlp": ({"model": "mlp", "data": "digits"}, 0.95, 16),
    "lenet5": ({"model": "lenet5", "data": "mnist"}, 0.99, 4),
}
"""What is trained, the target, and the most epochs that are tried."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of the planner's short runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {}
    for task in arguments.tasks:
        fields, target, most = TASKS[task]
        plan = tenfold.plan(Experiment(**fields), target=target, budget=arguments.budget)
        print(plan)
        chosen = train_all(plan.best, plan.best.training.epochs, 0.0, arguments.seeds)
        print(f"  chosen, {plan.best.training.epochs} epochs: {shown(chosen)}", flush=True)
        grid = exhaustive(Experiment(**fields), target, most, arguments.seeds)
        soonest = min(grid, key=lambda name: grid[name]["seconds"]) if grid else ""
        best = grid[soonest]["seconds"] if grid else None
        seconds = statistics.median(seconds for _, seconds in chosen)
        found[task] = {
            "chosen": describe_candidate(plan.chosen.candidate),
            "predicted": plan.predicted_seconds,
            "interval": plan.interval,
            "runs": chosen,
            "error": plan.predicted_seconds / seconds - 1,
            "soonest": soonest,
            "against_soonest": seconds / best if best else None,
            "planning_seconds": plan.cost_seconds,
            "grid": grid,
        }
        report(task, found[task], target)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def report(task: str, one: dict[str, Any], target: float) -> None:
    reached = sum(value >= target for value, _ in one["runs"])
    against = f", {one['against_soonest']:.2f}x the soonest ({one['soonest']})" if one["against_soonest"] else ""
    print(f"{task}: {one['chosen']}: {reached} of {len(one['runs'])} seeds reach {target:.0%}{against}; ", end="")
    print(f"predicted time {one['error']:+.1%}; planning took {one['planning_seconds']:.0f} s")


def exhaustive(base: Experiment, target: float, most: int, seeds: int) -> dict[str, Any]:
    """Return for each setting the fewest epochs with which all seeds reach the target, and their median seconds."""
    found: dict[str, Any] = {}
    for candidate in candidates_here(base):
        if candidate.looseness:
            continue
        name = f"{describe_candidate(candidate)}, {candidate.threads} threads"
        for epochs in range(1, most + 1):
            runs = train_all(candidate.experiment, epochs, target, seeds)
            print(f"  {name}, {epochs} epochs: {shown(runs)}", flush=True)
            if all(value >= target for value, _ in runs):
                found[name] = {"epochs": epochs, "seconds": statistics.median(seconds for _, seconds in runs)}
                break
    return found


def train_all(experiment: Experiment, epochs: int, target: float, seeds: int) -> list[tuple[float, float]]:
    """Return accuracy and training time of each seed, up to the first that misses the target."""
    runs: list[tuple[float, float]] = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            run = tenfold.train(experiment.replace(epochs=epochs, seed=seed, target=None), runs=folder)
        runs.append((float(run.accuracy or 0.0), float(run.seconds or 0.0)))
        if runs[-1][0] < target:
            break
    return runs


def shown(runs: list[tuple[float, float]]) -> str:
    return ", ".join(f"{value:.2%} after {seconds:.2f} s" for value, seconds in runs)


if __name__ == "__main__":
    main()
