"""The folds of a cross-validation as jobs of an executor; their runs are recorded here when they return."""

import time
from dataclasses import replace

from tenfold.crossval.fold import FoldEnd, FoldMode, FoldWork, fold_experiment
from tenfold.errors import ExperimentError, StopTraining, TenfoldError
from tenfold.executors.jobs import OF_RUN, Job, JobEnd
from tenfold.executors.submitting import Submitter
from tenfold.experiment import Experiment
from tenfold.runs.bundle import unpack
from tenfold.runs.store import FOLD


def check_jobs(experiment: Experiment) -> None:
    """Raise ExperimentError if the folds are trained together, so they cannot be separate jobs."""
    if FoldMode.of(experiment).trains_together:
        raise ExperimentError(
            "folds that train together on one device cannot be sent to an executor, which trains each as a job; "
            'use on="local", or fold_mode = "fold-by-fold"'
        )


def train_on(submitter: Submitter, work: FoldWork) -> None:
    """Train folds as jobs, record the run of each, pass on its events, and report its outcome."""
    parent, folder = work.context.parent, work.context.store.folder
    jobs = [
        Job.of(work.task.experiment, FOLD, job.index, label=job.split.name, scope=f"{OF_RUN}{parent}")
        for job in work.jobs
    ]
    submitter.keep_in(folder)
    lanes = CoreLanes()
    with submitter:
        for place, end in submitter.run(jobs, work.stopped):
            fold = work.jobs[place]
            try:
                ended = _record(submitter, work, place, end, lanes)
            except TenfoldError as error:
                ended = FoldEnd(error=str(error))
            work.done(replace(fold, threads=jobs[place].cores, cores=()), ended)


class CoreLanes:
    """Assigns jobs to lanes by the times at which they ran on their machines.

    Jobs do not report the cores that they used, but overlapping jobs must have used different ones.
    """

    def __init__(self) -> None:
        self._lanes: list[tuple[str, list[tuple[float, float]]]] = []

    def place(self, host: str, began: float, ended: float) -> int:
        """Return the first lane that was free on a machine while a job ran there, and note the job."""
        for number, (machine, spans) in enumerate(self._lanes):
            if machine == host and all(ended <= start or end <= began for start, end in spans):
                spans.append((began, ended))
                return number
        self._lanes.append((host, [(began, ended)]))
        return len(self._lanes) - 1


def _record(submitter: Submitter, work: FoldWork, place: int, end: JobEnd, lanes: CoreLanes) -> FoldEnd:
    content, error = end
    if not content:
        return FoldEnd(error=error)
    context, fold = work.context, work.jobs[place]
    split, bundle = fold.split, unpack(content)
    record, result = bundle.record, bundle.record.result
    if "crossval" in result and record.ended is not None:
        now, count = context.stopwatch.now(), len(result["crossval"]["cores"])
        ended = min(now, now - (time.time() - record.ended))
        began = ended - (record.ended - record.created)
        lane = lanes.place(record.host, record.created, record.ended)
        times = {"began": began, "ended": ended, "cores": [lane * count + core for core in range(count)]}
        result["crossval"] |= times
    about = {"parent": context.parent, "fold": split.fold, "repeat": split.repeat, "node": split.node}
    inherited = {name: context.metadata[name] for name in ("command", "code", "user_files") if name in context.metadata}
    number = context.store.import_run(
        bundle,
        experiment=fold_experiment(context.stored_experiment, split.name),
        metadata=inherited | {"crossval": about, "executor": submitter.name},
    )
    submitter.recorded(place)
    for event in context.store.events(number):
        try:
            work.relay(fold.index, replace(event, worker=fold.index))
        except StopTraining:  # it has ended already
            continue
    return FoldEnd(error=error) if error else FoldEnd(result)
