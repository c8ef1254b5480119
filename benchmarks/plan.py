"""The planner against an exhaustive grid: is its choice the soonest, and does it take as long as predicted?

    python benchmarks/plan.py --tasks mlp --seeds 3
    python benchmarks/plan.py --json plan.json

For each task, the planner chooses a setting and its epochs, for an experiment with each of three seeds: whether a
schedule passes a target by a hair is a matter of the seed. Then every setting that it chose from (where there are
several workers, those that average gradients) is trained with schedules of 1, 2, 3, ... epochs until all seeds reach
the target. One rule judges them all, that of `tenfold train --target`: the validation part, which is evaluated after
every epoch, reaches the target, and the training stops. Planner and grid share that part; the test part decides
nothing.

Then the choice and the soonest setting take turns, seed by seed, because a machine is not equally fast at all times;
short ones with five times as many seeds, because some stop an epoch or two later than others. Two figures count: the
seconds in all that the choice takes relative to the soonest setting (goal: at most 1.1), and the error of its predicted
training time (goal: 15%). In all means with startup, evaluation and saving, which is what a plan minimizes; the ratio
of the training times alone is printed beside it. The grid knows its epochs from having trained them all, the planner
only from its short runs.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import tenfold
from tenfold.experiment import Experiment
from tenfold.prediction.planning.assessment import describe_candidate
from tenfold.prediction.planning.candidates import candidates_here
from tenfold.report.results.plan_result import Plan

TASKS: dict[str, tuple[dict[str, Any], float, int]] = {
    "mlp": ({"model": "mlp", "data": "digits"}, 0.95, 16),
    "lenet5": ({"model": "lenet5", "data": "mnist"}, 0.99, 4),
}
"""What is trained, the target, and the most epochs that are tried."""


class Trained(NamedTuple):
    """A run that stops at the target."""

    validation: float
    """Accuracy at its end, on the part that was watched."""
    test: float
    seconds: float
    """Training time, to the target or to the end."""
    reached: bool
    total: float
    """With startup, evaluation and saving."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plans", type=int, default=3, help="of experiments with the seeds 0, 1, ...")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds that planning may take")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    for task in arguments.tasks:
        fields, target, most = TASKS[task]
        plans = []
        for seed in range(arguments.plans):
            plans.append(tenfold.plan(Experiment(**fields, seed=seed), target=target, budget=arguments.budget))
            print(plans[-1], flush=True)
        held_out = plans[0].best.data.validation_fraction
        print(f"compared: seconds in all until {held_out:.0%} of the training part, held out, reach {target:.0%}")
        grid = exhaustive(Experiment(**fields, validation_fraction=held_out), target, most, arguments.seeds)
        soonest = min(grid, key=lambda name: grid[name]["total"])
        found[task] = [compare(plan, soonest, grid[soonest], target, arguments.seeds) for plan in plans]
        ratio, error = (statistics.median(map(abs, (one[of] for one in found[task]))) for of in ("ratio", "error"))
        print(
            f"{task}: median of {len(plans)} plans: {ratio:.2f}x the soonest, error of the predicted time {error:.1%}"
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def compare(plan: Plan, soonest: str, peer: dict[str, Any], target: float, seeds: int) -> dict[str, Any]:
    """Train the choice of a plan and the soonest setting of the grid in turns; print and return how they compare."""
    chosen, others = take_turns(plan.best, peer["experiment"], seeds)
    name, epochs = describe_candidate(plan.chosen.candidate), plan.best.training.epochs
    print(f"  chosen, {name}, {epochs} epochs: {shown(chosen)}")
    print(f"  soonest, {soonest}, {peer['epochs']} epochs: {shown(others)}")
    (seconds, total), (peer_seconds, peer_total) = middle(chosen), middle(others)
    ratio, error = total / peer_total, plan.predicted_seconds / seconds - 1
    reached = sum(run.reached for run in chosen)
    print(f"  {reached} of {len(chosen)} runs of the choice reach {target:.0%}, {ratio:.2f}x the soonest, ", end="")
    print(f"{seconds / peer_seconds:.2f}x by training time alone; predicted time {error:+.1%}; ", end="")
    print(f"planning took {plan.cost_seconds:.0f} s", flush=True)
    return {
        "chosen": name,
        "epochs": epochs,
        "predicted": plan.predicted_seconds,
        "interval": plan.interval,
        "runs": [run._asdict() for run in chosen],
        "soonest": soonest,
        "soonest_runs": [run._asdict() for run in others],
        "ratio": ratio,
        "error": error,
        "planning_seconds": plan.cost_seconds,
    }


def exhaustive(base: Experiment, target: float, most: int, seeds: int) -> dict[str, Any]:
    """Return for each setting the shortest schedule with which all seeds reach the target, and their median seconds."""
    found: dict[str, Any] = {}
    for candidate in candidates_here(base):
        if candidate.looseness:
            continue
        name = f"{describe_candidate(candidate)}, {candidate.threads} threads"
        for epochs in range(1, most + 1):
            runs = train_all(candidate.experiment.replace(epochs=epochs, target=target), seeds)
            print(f"  {name}, {epochs} epochs: {shown(runs)}", flush=True)
            if all(one.reached for one in runs):
                seconds, total = middle(runs)
                experiment = candidate.experiment.replace(epochs=epochs, target=target)
                found[name] = {"epochs": epochs, "seconds": seconds, "total": total, "experiment": experiment}
                break
    return found


def take_turns(chosen: Experiment, soonest: Experiment, seeds: int) -> tuple[list[Trained], list[Trained]]:
    """Train both with every seed, one after the other; with five times as many if runs take less than a second."""
    ours, theirs = [train(chosen, 0)], [train(soonest, 0)]
    more = 5 if max(ours[0].total, theirs[0].total) < 1 else 1
    for seed in range(1, more * seeds):
        ours.append(train(chosen, seed))
        theirs.append(train(soonest, seed))
    return ours, theirs


def middle(runs: list[Trained]) -> tuple[float, float]:
    """Return the median training time, and the median of the seconds in all."""
    return statistics.median(one.seconds for one in runs), statistics.median(one.total for one in runs)


def train_all(experiment: Experiment, seeds: int) -> list[Trained]:
    """Train with each seed, up to the first that misses the target."""
    runs: list[Trained] = []
    for seed in range(seeds):
        runs.append(train(experiment, seed))
        if not runs[-1].reached:
            break
    return runs


def train(experiment: Experiment, seed: int) -> Trained:
    with tempfile.TemporaryDirectory() as folder:
        run = tenfold.train(experiment.replace(seed=seed), runs=folder)
        watched = [one for one in run.measurements() if (one.part, one.name) == ("validation", "accuracy")]
    to_target = run.seconds_to_target
    seconds = float(to_target if to_target is not None else run.seconds or 0.0)
    total = seconds + sum(run.times.get(kind, 0.0) for kind in ("start", "evaluate", "save"))
    return Trained(watched[-1].value, float(run.accuracy or 0.0), seconds, to_target is not None, total)


def shown(runs: list[Trained]) -> str:
    return ", ".join(
        f"{one.validation:.2%} (test {one.test:.2%}) after {one.seconds:.2f} s, {one.total:.2f} s in all"
        for one in runs
    )


if __name__ == "__main__":
    main()
