"""The ways to train the folds. A mode is a function that trains jobs, tells of what happens, and of each one's end."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from tenfold.common.registry import Registry
from tenfold.crossval.fold import Job, Setting, task_of, train_fold
from tenfold.crossval.fold_pool import Done, Pool, Relay
from tenfold.crossval.layout import desks, mode_of, of_one_fold
from tenfold.engines import Engine, choose
from tenfold.engines.fused import Trained, train_folds
from tenfold.errors import TenfoldError
from tenfold.experiment import Experiment
from tenfold.machine.cores import budget
from tenfold.runs import Clock, Emit, Event, Lifecycle

Mode = Callable[[Setting, Sequence[Job], Relay, Done], None]


def side_by_side(setting: Setting, jobs: Sequence[Job], relay: Relay, done: Done) -> None:
    """Whole folds are given to processes, as many at once as there are cores or nodes."""
    shared = desks(setting.task.experiment, len(jobs))
    placed = [replace(job, threads=threads) for job, threads in zip(jobs, shared.threads, strict=True)]
    Pool(setting, shared, relay, done).run(placed)


def one_by_one(setting: Setting, jobs: Sequence[Job], relay: Relay, done: Done) -> None:
    """Each fold is trained by all workers together, one fold after another."""
    whole = setting.task
    pinned = [cpu for cpus in whole.cores.workers for cpu in cpus]
    cores = tuple(pinned or range(whole.workers * whole.threads))
    for job in jobs:
        placed = replace(job, threads=whole.threads, cores=cores, pinned=bool(pinned))

        def listen(event: Event, index: int = job.index) -> None:
            if event.worker == 0:
                relay(index, replace(event, worker=index))

        _attempt(choose(of_one_fold(whole.experiment, job.place.name)), setting, placed, listen, done)


def all_at_once(setting: Setting, jobs: Sequence[Job], relay: Relay, done: Done) -> None:
    """All folds step together on one device; each is recorded when all are trained."""
    machine = setting.task.experiment.machine
    count = (machine.threads or budget()) if machine.device == "cpu" else 1
    jobs = [replace(job, threads=count, cores=tuple(range(count))) for job in jobs]
    began, told = setting.clock.now(), [list[Event]() for _ in jobs]

    def teller(place: int) -> Emit:
        def emit(event: Event) -> None:
            told[place].append(event)
            relay(jobs[place].index, replace(event, worker=jobs[place].index))

        return emit

    tasks = [task_of(setting, job) for job in jobs]
    outcomes = train_folds(tasks, Clock(), [teller(place) for place in range(len(jobs))])
    for job, outcome, events in zip(jobs, outcomes, told, strict=True):

        def listen(event: Event, index: int = job.index, known: list[Event] = events) -> None:
            if isinstance(event, Lifecycle) and event not in known:
                relay(index, replace(event, worker=index))

        _attempt(Trained(outcome, events), setting, replace(job, began=began), listen, done)


def _attempt(engine: Engine, setting: Setting, job: Job, listen: Emit, done: Done) -> None:
    """Train a fold, and tell how that ended."""
    try:
        result = train_fold(engine, setting, job, listen)
    except TenfoldError as error:
        done(job, None, str(error))
    except Exception as error:
        done(job, None, "".join(traceback.format_exception_only(error)).strip())
    else:
        done(job, result, "")


MODES: Registry[Mode] = Registry(
    "fold mode",
    {
        "folds-over-workers": side_by_side,
        "data-and-folds": side_by_side,
        "fold-by-fold": one_by_one,
        "fused": all_at_once,
    },
)


def choose_mode(experiment: Experiment) -> Mode:
    """Return the mode of the experiment."""
    return MODES[mode_of(experiment)]
