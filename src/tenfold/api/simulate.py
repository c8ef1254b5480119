"""`tenfold.simulate`, `forecast`, `twin`, `whatif` and `scaling`: predict training times on other hardware.

Simulating means training with engine = "virtual": `prediction/virtual_engine.py` trains, and
`prediction/task_prediction.py` predicts the times.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from tenfold.api.compare import compare, experiments_of, split_grid
from tenfold.api.train import Shown, cross_validate, finished_run, train_and_record, warn
from tenfold.common.metric_traits import main_metric
from tenfold.crossval.crossval_run import predict_fold_times
from tenfold.data import Splits
from tenfold.engines import Resolved, require_no_launcher
from tenfold.engines.base import RecordedRun, record_work
from tenfold.engines.prepare import prepare
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.experiment import FOLD_FIELDS, Data, Experiment, Parallel
from tenfold.experiment.experiment import fields_by_name
from tenfold.experiment.field_types import Fields, Grid
from tenfold.machine.cores import budget
from tenfold.prediction.calibration import silent
from tenfold.prediction.probes import ReportProgress, counts_up_to
from tenfold.prediction.script_simulation import Say, Script
from tenfold.prediction.task_prediction import predict_task
from tenfold.prediction.whatif import USUAL_LINKS, WhatIf, check_links, replay_changed
from tenfold.reports.display import reporter
from tenfold.reports.forecast import Forecast, ScalingStudy, Twin
from tenfold.reports.formatting import duration, metric_value, plural, ratio
from tenfold.reports.progress import Turn
from tenfold.reports.related_runs import find_single_worker
from tenfold.runs import Run, Store
from tenfold.runs.events import Emit, Stopwatch
from tenfold.runs.open_run import open_run
from tenfold.runs.store import SCRIPT, absolute, one_invocation
from tenfold.workers.task import Task


@fields_by_name
def simulate(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    **fields: Unpack[Fields],
) -> Run:
    """Train on a virtual cluster: compute the same weights here, and predict the training time there.

    The weights equal those of a real run (on CPU bit for bit); `run.seconds` is predicted, with `run.interval` around
    it. `cluster` is a `Cluster`, a table, a file or "here", the processes of this machine; without it, nodes are
    connected by `link`. `run.result["baseline_seconds"]` is the predicted time of one worker there, and
    `run.result["speedup"]` the speedup over it; both are missing if the run stopped early or reached a target, because
    the same moment for one worker is unknown. If `folds` is set, the run is a cross-validation: its folds are trained
    on this machine, and the time is for all of them on the cluster.
    """
    experiment = Experiment.given(experiment, **fields).replace(engine="virtual")
    shown: Shown = {"callbacks": callbacks, "log": log, "listen": listen, "progress": progress}
    loaded = LoadedData()
    if experiment.parallel.folds is not None:
        run: Run = cross_validate(experiment, runs=runs, **shown).run
        _record_baseline(experiment, run, loaded)
        return run
    recorded = train_and_record(experiment, runs=runs, kind="simulate", **shown)
    run = finished_run(recorded)
    if recorded.splits is not None:
        loaded.add(recorded.experiment, recorded.splits)
    _record_baseline(experiment, run, loaded)
    return run


def simulate_script(
    script: str | Path,
    *arguments: str,
    module: bool = False,
    only_time: bool = False,
    runs: str | Path | None = None,
    say: Say = lambda _, line: print(line),
    listen: Emit = warn,
    **fields: Unpack[Fields],
) -> Run:
    """Run a torch.distributed script on a virtual cluster, and predict its time there.

    The script needs no change: each of `workers` ranks is a process, started as by torchrun, and its process groups,
    of any backend, move real tensors and virtual time. The fields `workers`, `link` or `cluster`, `threads` and `seed`
    (of stragglers) apply. With `module`, `script` is the name of a module, as for `python -m`. With `only_time` the
    ranks end after a few dozen optimizer steps, and the rest is extrapolated. `say(rank, line)` receives the output of
    the ranks.
    """
    require_no_launcher("a simulation")
    program = Script.of(script, arguments, module=module, only_time=only_time, **fields)
    stopwatch, store = Stopwatch(), Store(runs)
    number = store.create(program.experiment, kind=SCRIPT, metadata=program.metadata())
    outcome = record_work(
        lambda emit: program.run(stopwatch, emit, say), store, number, stopwatch, listen, can_resume=False
    )
    return finished_run(RecordedRun.finished(store, number, outcome, program.experiment))


def _record_baseline(experiment: Experiment, run: Run, loaded: "LoadedData") -> None:
    """Store the predicted time of one worker and the speedup with a run, if that time can be predicted.

    Errors are ignored: the run is already recorded, and complete without a speedup.
    """
    with suppress(TenfoldError):
        if (baseline := simulation_baseline(experiment, run, loaded)) is not None:
            baseline.record(run)


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
        """Store the time of one worker and the speedup with the run, for its page."""
        run.result.update(baseline_seconds=self.seconds, speedup=self.speedup)
        run.store.update(run.id, result=run.result)

    def line(self, run: Run) -> str:
        workers = run.experiment.parallel.workers
        return (
            f"one worker would take {duration(self.seconds)}, predicted: speedup {ratio(self.speedup)} with "
            f"{plural(workers, 'worker')}, efficiency {self.speedup / workers:.0%}"
        )


def simulation_baseline(experiment: Experiment, run: Run, loaded: "LoadedData") -> SimulationBaseline | None:
    """Return the baseline of a simulated run of an experiment; None where there is none.

    One worker is its own baseline. A run that stopped early or reached its target has no baseline, because the
    forecast of one worker is for the full training.
    """
    if experiment.parallel.workers == 1 or not run.seconds:
        return None
    if run.result.get("stopped_early") or run.seconds_to_target is not None:
        return None
    seconds = forecast_grid(_alone(experiment), {}, loaded).forecasts[0].prediction.seconds
    return SimulationBaseline(seconds, seconds / run.seconds)


def recorded_baseline(run: Run) -> SimulationBaseline | None:
    """Return the recorded baseline of a simulated run; None if there is none."""
    result = run.result
    is_recorded = "baseline_seconds" in result and "speedup" in result
    return SimulationBaseline(result["baseline_seconds"], result["speedup"]) if is_recorded else None


def _alone(experiment: Experiment) -> Experiment:
    """Return the experiment with one worker, with defaults for unset fields such as the batch size."""
    parallel = experiment.parallel
    return experiment.replace(parallel=Parallel(**{name: getattr(parallel, name) for name in FOLD_FIELDS}))


def accuracy_warning(experiment: Experiment, run: Run) -> str:
    """Return a sentence on accuracy that a simulated run lost, or may have lost; "" if there is no reason for one."""
    if experiment.parallel.workers == 1 or experiment.parallel.folds is not None:
        return ""
    if experiment.training.optimizer_traits.steps_with_all_workers:
        return ""
    return _warning(run, Resolved.of(_alone(experiment)).experiment.training.samples_per_step)


def _warning(run: Run, batch: int) -> str:
    """Return a warning about accuracy lost compared with a recorded run of one worker, or about very few steps."""
    steps = run.result.get("steps") or 0
    alone = math.ceil(run.metadata["data"]["train"] / batch) * run.result.get("epochs", 0)
    few = f"each replica took {plural(steps, 'step')}, one worker alone would take {alone:,}"
    cure = "train more epochs, or use fewer workers or a smaller batch size"
    single, name = find_single_worker(run), main_metric(run.metrics)
    if single is not None and name is not None and name in single.metrics:
        ours, theirs = run.metrics[name], single.metrics[name]
        lower = run.experiment.training.prefers_lower(name)
        if lower is None or (ours - theirs if lower else theirs - ours) <= WORSE * abs(theirs):
            return ""
        described = (
            f"{name} {metric_value(name, ours)}, but {metric_value(name, theirs)} with one worker (run {single.id})"
        )
        return f"{described}: {few}; {cure}"
    return f"{few}: the accuracy may have suffered; {cure}" if steps < min(FEW_STEPS, alone / 4) else ""


@fields_by_name
def forecast(
    experiment: Experiment | None = None,
    *,
    progress: bool | ReportProgress | None = None,
    **settings: Unpack[Grid],
) -> Forecast:
    """Predict the time of an experiment with every combination of the listed settings, without training.

    If `folds` is set, the time is for the whole cross-validation. `progress` shows the measurements on this machine:
    True always, False never, None on a terminal or in a notebook, or a function that is called with each line.
    """
    require_no_launcher("a forecast")
    base, dimensions = split_grid(Experiment.given(experiment, engine="virtual"), dict(settings))
    return forecast_grid(base, dimensions, LoadedData(), reporter(progress))


class LoadedData:
    """The data of experiments that are predicted one after another; shared data are loaded once."""

    def __init__(self) -> None:
        self._loaded: list[tuple[Data, Splits]] = []

    def task_of(self, experiment: Experiment) -> Task:
        splits = next((splits for data, splits in self._loaded if data == experiment.data), None)
        task = prepare(Resolved.of(experiment), splits=splits)
        if splits is None:
            self.add(experiment, task.splits)
        return task

    def add(self, experiment: Experiment, splits: Splits) -> None:
        self._loaded.append((experiment.data, splits))


def forecast_grid(
    base: Experiment, dimensions: dict[str, list[Any]], loaded: LoadedData, report: ReportProgress = silent
) -> Forecast:
    """Predict every combination of the dimensions of a grid."""
    predict = partial(predict_task, report=report)
    predictions = []
    for experiment in experiments_of(base, dimensions, repeats=1):
        task = loaded.task_of(experiment)
        predicted = predict(task) if experiment.parallel.folds is None else predict_fold_times(task, predict)
        predictions.append((experiment, predicted))
    return Forecast(predictions)


@fields_by_name
@one_invocation()
def twin(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    watch: Callable[[str], Emit] | None = None,
    **fields: Unpack[Fields],
) -> Twin:
    """Train for real and on a virtual cluster, and compare weights and times.

    `watch` is called with the name of each run before it starts, and returns the listener of its events.
    """
    require_no_launcher("a twin")
    runs = absolute(runs)  # before the user's own code can change the current folder
    real = Experiment.given(experiment, **fields)
    if real.machine.is_virtual:
        real = real.replace(engine="auto", cluster=None, link=None)
    virtual = real.replace(engine="virtual", cluster="here")
    predict_task(prepare(Resolved.of(virtual)))  # makes the measurements before both runs
    done = {
        name: finished_run(train_and_record(item, runs=runs, kind="twin", listen=watch(name) if watch else None))
        for name, item in {"real": real, "virtual": virtual}.items()
    }
    return Twin(done["real"], done["virtual"], difference(done["real"].weights, done["virtual"].weights))


def whatif(
    run: str | int | Run = "last", *, runs: str | Path | None = None, links: Sequence[str] = USUAL_LINKS
) -> WhatIf:
    """Predict the time of a recorded run with one thing changed, by replaying its recorded steps.

    `links` are links between nodes to try in place of shared memory.
    """
    check_links(links)
    return replay_changed(run if isinstance(run, Run) else open_run(run, runs=runs), links)


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference between two networks' states."""
    apart = [float((one[name].double() - other[name].double()).abs().max()) for name in one if one[name].numel()]
    return max(apart, default=0.0)


LINK = "10gbe"
"""The link between nodes where nothing else is said."""


@fields_by_name
@one_invocation()
def scaling(
    experiment: Experiment | None = None,
    *,
    up_to: int = 64,
    repeats: int = 1,
    runs: str | Path | None = None,
    watch: Callable[[Turn], None] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    **fields: Unpack[Fields],
) -> ScalingStudy:
    """Measure strong and weak scaling up to the cores of this machine, and predict both up to `up_to` workers.

    Strong scaling divides the same data among more workers. Weak scaling gives each worker the same number of samples;
    `up_to` workers together have the whole data set. Beyond this machine, times are predicted for nodes of one worker
    that are connected by `link` (default: 10gbe). Other arguments are as in `compare`, and recorded runs are reused.
    """
    base = Experiment.given(experiment, **fields)
    if up_to < 2:
        raise ExperimentError(f"up_to = {up_to}: should be at least 2")
    if base.parallel.folds is not None:
        raise ExperimentError(
            "parallel.folds is set, but scaling trains one model for each number of workers; leave it unset"
        )
    link = base.machine.link or LINK
    real = base.replace(engine="auto", link=None, cluster=None)
    here = list(counts_up_to(min(budget(), up_to)))
    beyond = [count for count in counts_up_to(up_to) if count > here[-1]]
    train = partial(compare, repeats=repeats, runs=runs, watch=watch, listen=listen, progress=progress)
    strong = train(real, workers=here)
    samples = int(strong.runs[0].metadata["data"]["train"]) // up_to
    if samples < 1:
        raise ExperimentError(
            f"up_to = {up_to}: there are fewer training samples than workers; choose a smaller number"
        )

    def weakly(counts: list[int]) -> list[dict[str, Any]]:
        return [{"workers": count, "limit": count * samples} for count in counts]

    weak = train(real, together=weakly(here))
    virtual = base.replace(engine="virtual", cluster=None, link=link)
    shown = False if progress is None else progress
    far = forecast(virtual, workers=[1, *beyond], progress=shown) if beyond else None
    far_weak = [forecast(virtual.replace(**item), progress=shown) for item in weakly([1, *beyond])] if beyond else []
    return ScalingStudy(
        strong, weak, far, far_weak, samples=samples, link=link if isinstance(link, str) else "the given link"
    )
