"""The planner against an exhaustive grid: is its choice the soonest, and does it take as long as predicted?

    python benchmarks/plan.py --tasks mlp
    python benchmarks/plan.py --json plan.json

For each task, the planner chooses a setting and its epochs, for an experiment with each of three seeds. Then every
setting that it chose from (where there are several workers, those that average gradients) is trained with schedules of
1, 2, 3, ... epochs and several seeds. One rule judges them all, that of `tenfold train --target`: the validation part,
which is evaluated after every epoch, reaches the target, and the training stops. Planner and grid share that part; the
test part decides nothing.

Whether a short schedule reaches the target is often a matter of the seed. So a schedule is judged by its expected
seconds: those of a run in the mean, and for each run that misses the target those of another, with a quarter more
epochs and at least one more. (The shortest schedule that reaches the target with three of three seeds is no measure: of
several that reach it with two seeds of three, one will pass by luck.) Only what cannot be the soonest is left out: the
further seeds of a schedule whose first three miss the target, and longer schedules of a setting whose runs take
1.2 times the expected seconds of the best.

Then the choices and the soonest setting take turns, with seeds that neither plans nor grid have seen, because a machine
is not equally fast at all times, and because the best of many schedules was also lucky. Two figures count: the expected
seconds in all of a choice relative to those of the soonest setting (goal: at most 1.1), and the error of its predicted
training time (goal: 15%). In all means with startup, evaluation and saving, which is what a plan minimizes.
"""

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from support.people_models import TASKS as PEOPLE

import tenfold
from tenfold.experiment import Experiment
from tenfold.prediction.planning.candidates import candidates_here
from tenfold.prediction.planning.evidence import describe_candidate
from tenfold.prediction.planning.learning import next_epochs
from tenfold.reports.plan import Plan


def _people(title: str, samples: int, tested: int = 1024) -> dict[str, Any]:
    """Return the fields of one of the models that people train, on data from which it can learn."""
    x, y = PEOPLE[title].data(samples + tested)
    return {
        "model": PEOPLE[title].make,
        "data": {"train": (x[:samples], y[:samples]), "test": (x[samples:], y[samples:])},
    }


TASKS: dict[str, tuple[dict[str, Any], float, int]] = {
    "mlp": ({"model": "mlp", "data": "digits"}, 0.95, 19),
    "lenet5": ({"model": "lenet5", "data": "mnist"}, 0.99, 4),
    "tabular": (_people("tabular MLP", 16384), 0.97, 4),
    "lstm": (_people("LSTM", 4096), 0.98, 4),
}
"""What is trained, the target, and the most epochs that are tried."""


FRESH = 5000
"""Seeds from here on are seen neither by plans nor by the grid."""
HOPELESS = 3
"""So many runs of a schedule that all miss the target end its trial."""
LONGER_THAN_BEST = 1.2
"""Runs that take this many times the expected seconds of the best end the trial of longer schedules."""


class Trained(NamedTuple):
    """A run that stops at the target."""

    validation: float
    """Accuracy at its end, on the validation part."""
    test: float
    seconds: float
    """Training time, to the target or to the end."""
    reached: bool
    total: float
    """With startup, evaluation and saving."""


class Judged(NamedTuple):
    """A setting with its epochs, and its runs with several seeds."""

    name: str
    experiment: Experiment
    runs: list[Trained]

    @property
    def epochs(self) -> int:
        return self.experiment.training.epochs

    @property
    def missed(self) -> int:
        return sum(not run.reached for run in self.runs)

    @property
    def total(self) -> float:
        """The seconds in all of a run, in the mean."""
        return statistics.mean(run.total for run in self.runs)

    @property
    def expected(self) -> float:
        """The seconds in all until the target is reached, with another run for each that misses it."""
        again = next_epochs(self.epochs) / self.epochs
        return self.total * (1 + again * self.missed / len(self.runs))

    def __str__(self) -> str:
        seconds = statistics.median(run.seconds for run in self.runs)
        return (
            f"{self.name}, {self.epochs} epochs: {len(self.runs) - self.missed} of {len(self.runs)} reach the target, "
            f"after {seconds:.2f} s of training; {self.total:.2f} s in all, {self.expected:.2f} s expected; validation "
            f"{statistics.mean(run.validation for run in self.runs):.2%}, test "
            f"{statistics.mean(run.test for run in self.runs):.2%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=8, help="for each schedule of the grid, and for each turn")
    parser.add_argument("--plans", type=int, default=3, help="of experiments with the seeds 0, 1, ...")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds that planning may take")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for task in arguments.tasks:
        fields, target, most = TASKS[task]
        plans = []
        for seed in range(arguments.plans):
            plans.append(tenfold.plan(Experiment(**fields, seed=seed), target=target, budget=arguments.budget))
            print(plans[-1], flush=True)
        held_out = plans[0].best.data.validation_fraction
        print(f"compared: seconds in all until {held_out:.0%} of the training part, held out, reach {target:.0%}")
        soonest = exhaustive(Experiment(**fields, validation_fraction=held_out), target, most, arguments.seeds)
        print(f"  soonest: {soonest}")
        found[task] = compare(plans, soonest, arguments.seeds)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def compare(plans: list[Plan], soonest: Judged, seeds: int) -> dict[str, Any]:
    """Train the choices of plans and the soonest setting of the grid in turns; print and return how they compare."""
    choices = [plan.best for plan in plans]
    settings = {_setting(item): item for item in (*choices, soonest.experiment)}
    runs: dict[str, list[Trained]] = {key: [] for key in settings}
    for seed in range(FRESH, FRESH + seeds):
        for key, experiment in settings.items():
            runs[key].append(train(experiment, seed))
    peer = Judged(soonest.name, soonest.experiment, runs[_setting(soonest.experiment)])
    print(f"in turns, with other seeds\n  soonest: {peer}")
    rows = []
    for seed, plan in enumerate(plans):
        chosen = Judged(describe_candidate(plan.chosen.candidate), plan.best, runs[_setting(plan.best)])
        ratio = chosen.expected / peer.expected
        error = plan.predicted_seconds / statistics.median(run.seconds for run in chosen.runs) - 1
        print(f"  plan {seed}: {chosen}")
        print(f"    {ratio:.2f}x the soonest; predicted time {error:+.1%}; planning took {plan.cost_seconds:.0f} s")
        rows.append(
            {
                "chosen": chosen.name,
                "epochs": chosen.epochs,
                "predicted": plan.predicted_seconds,
                "interval": plan.interval,
                "runs": [run._asdict() for run in chosen.runs],
                "ratio": ratio,
                "error": error,
                "planning_seconds": plan.cost_seconds,
            }
        )
    ratio, error = (statistics.median(abs(row[of]) for row in rows) for of in ("ratio", "error"))
    print(f"median of {len(rows)} plans: {ratio:.2f}x the soonest, error of the predicted time {error:.1%}", flush=True)
    peer_runs = [run._asdict() for run in peer.runs]
    return {"soonest": peer.name, "soonest_epochs": peer.epochs, "soonest_runs": peer_runs, "plans": rows}


def exhaustive(base: Experiment, target: float, most: int, seeds: int) -> Judged:
    """Return the setting and the epochs with the fewest expected seconds to the target."""
    best: Judged | None = None
    for candidate in reversed(candidates_here(base)):  # the fastest are among the last
        if candidate.looseness:
            continue
        name, epochs = f"{describe_candidate(candidate)}, {candidate.threads} threads", 1
        while epochs <= most:
            tried = Judged(name, candidate.experiment.replace(epochs=epochs, target=target), [])
            limit = LONGER_THAN_BEST * best.expected if best is not None else math.inf
            while len(tried.runs) < seeds and not (len(tried.runs) == tried.missed == HOPELESS):
                tried.runs.append(train(tried.experiment, len(tried.runs)))
                if tried.total > limit:
                    break
            print(f"  {tried}", flush=True)
            if tried.total > limit:
                break
            if tried.missed < len(tried.runs) and (best is None or tried.expected < best.expected):
                best = tried
            epochs = next_epochs(epochs)
    assert best is not None, "no schedule reaches the target"
    return best


def _setting(experiment: Experiment) -> str:
    """Return what tells settings apart: the whole experiment but its seed."""
    return repr(experiment.replace(seed=0).flat())


def train(experiment: Experiment, seed: int) -> Trained:
    with tempfile.TemporaryDirectory() as folder:
        run = tenfold.train(experiment.replace(seed=seed), runs=folder)
        measured = [
            measurement
            for measurement in run.measurements()
            if (measurement.part, measurement.name) == ("validation", "accuracy")
        ]
    to_target = run.seconds_to_target
    seconds = float(to_target if to_target is not None else run.seconds or 0.0)
    total = seconds + sum(run.times.get(kind, 0.0) for kind in ("start", "evaluate", "save"))
    return Trained(measured[-1].value, float(run.accuracy or 0.0), seconds, to_target is not None, total)


if __name__ == "__main__":
    main()
