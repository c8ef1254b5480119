"""What a simulation is compared with: the predicted time of one worker, and whether the accuracy suffered."""

import math
from dataclasses import dataclass

from tenfold.api.forecast import forecast
from tenfold.common.metric_table import main_metric
from tenfold.engines.prepare import resolve_defaults
from tenfold.experiment import FOLD_FIELDS, Division, Experiment
from tenfold.report.formatting import duration, metric_value, plural, ratio
from tenfold.report.related_runs import find_single_worker
from tenfold.runs import Run

FEW_STEPS = 300
"""With fewer steps of each replica than this, the accuracy is at risk."""
WORSE = 0.005
"""How much worse than the baseline, as a share of its value, a metric has to be to be mentioned."""


@dataclass(frozen=True)
class SimulationBaseline:
    """The same experiment with one worker on the same hardware."""

    seconds: float
    """Its predicted training time."""
    speedup: float

    def record(self, run: Run) -> None:
        """Store the time of one worker and the speedup with the run, so that its page shows them."""
        run.result.update(baseline_seconds=self.seconds, speedup=self.speedup)
        run.store.update(run.id, result=run.result)

    def line(self, run: Run) -> str:
        """Return a sentence with the speedup."""
        workers = run.experiment.division.workers
        return (
            f"one worker would take {duration(self.seconds)}, predicted: speedup {ratio(self.speedup)} with "
            f"{plural(workers, 'worker')}, efficiency {self.speedup / workers:.0%}"
        )


def simulation_baseline(experiment: Experiment, run: Run) -> SimulationBaseline | None:
    """Return what a simulated run of an experiment is compared with; None where there is nothing to compare it with.

    One worker is its own baseline. A run that stopped before its last step, or reached its target, took less training
    than the forecast of one worker is about.
    """
    if experiment.division.workers == 1 or not run.seconds:
        return None
    if run.result.get("stopped_early") or run.seconds_to_target is not None:
        return None
    seconds = forecast(_alone(experiment), progress=False).forecasts[0].prediction.seconds
    return SimulationBaseline(seconds, seconds / run.seconds)


def recorded_baseline(run: Run) -> SimulationBaseline | None:
    """Return what was recorded with a simulated run; None where nothing was."""
    result = run.result
    found = "baseline_seconds" in result and "speedup" in result
    return SimulationBaseline(result["baseline_seconds"], result["speedup"]) if found else None


def _alone(experiment: Experiment) -> Experiment:
    """Return the experiment with one worker, and its defaults, such as its batch size, where they are left open."""
    division = experiment.division
    return experiment.replace(division=Division(**{name: getattr(division, name) for name in FOLD_FIELDS}))


def accuracy_warning(experiment: Experiment, run: Run) -> str:
    """Return a sentence on accuracy that a simulated run lost, or may have lost; "" if there is no reason for one."""
    if experiment.division.workers == 1:
        return ""
    return _warning(run, resolve_defaults(_alone(experiment)).training.samples_per_step)


def _warning(run: Run, batch: int) -> str:
    """Return how much accuracy was lost compared with a recorded run of one worker, or that steps were very few."""
    steps = run.result.get("steps") or 0
    alone = math.ceil(run.facts["data"]["train"] / batch) * run.result.get("epochs", 0)
    few = f"each replica took {plural(steps, 'step')}, one worker alone would take {alone:,}"
    cure = "train more epochs, or use fewer workers or a smaller batch size"
    found, name = find_single_worker(run), main_metric(run.metrics)
    if found is not None and name is not None and name in found.metrics:
        ours, theirs = run.metrics[name], found.metrics[name]
        lower = run.experiment.training.prefers_lower(name)
        if lower is None or (ours - theirs if lower else theirs - ours) <= WORSE * abs(theirs):
            return ""
        described = (
            f"{name} {metric_value(name, ours)}, but {metric_value(name, theirs)} with one worker (run {found.id})"
        )
        return f"{described}: {few}; {cure}"
    return f"{few}: the accuracy may have suffered; {cure}" if steps < min(FEW_STEPS, alone / 4) else ""
