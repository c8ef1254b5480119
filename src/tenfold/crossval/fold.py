"""One fold: a task like any other, recorded as a run of its own, and measured on all three parts."""

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from tenfold.crossval.layout import Place, mode_of, of_one_fold
from tenfold.data import Picked
from tenfold.engines import Engine, Outcome
from tenfold.engines.prepare import audit
from tenfold.engines.recording import execute, take_up
from tenfold.experiment import Experiment
from tenfold.machine import devices
from tenfold.machine.affinity import NOT_PINNED, CoreMap
from tenfold.runs import Clock, Emit, Event, Metric, Store, checkpoint
from tenfold.runs.resumption import Resumption
from tenfold.runs.store import FOLD
from tenfold.training import choose_loss, choose_metrics, evaluate
from tenfold.workers.task import Task, make_network

OUTPUTS = "test_outputs.pt"
"""What a fold's network says to the test part, for the vote of all."""


@dataclass(frozen=True)
class Job:
    """One fold to be trained, and where."""

    index: int
    """Its place among all."""
    place: Place
    threads: int = 1
    cores: tuple[int, ...] = ()
    """The cores it has for itself: cpus where they are pinned, else desks counted from 0."""
    pinned: bool = False
    run: int | None = None
    """An earlier run of the same fold, to go on with."""
    began: float | None = None
    """When it began, where it was trained before it is recorded."""


@dataclass(frozen=True)
class Setting:
    """What all folds of a cross-validation have in common."""

    task: Task
    """The whole: all data, and the experiment with its folds."""
    written: Experiment
    """The same experiment as it is recorded, with names in the place of Python objects."""
    store: Store
    parent: int
    """The run that the folds are parts of."""
    facts: dict[str, Any]
    """Of the whole, which folds take over but for their data."""
    clock: Clock
    """Seconds since the whole began."""


def task_of(setting: Setting, job: Job) -> Task:
    """Return the task that trains one fold; it shows the data of the whole and copies nothing."""
    whole, place = setting.task, job.place
    picked = replace(
        whole.splits,
        train=Picked(whole.splits.train, place.train),
        validation=Picked(whole.splits.train, place.validation),
        groups=None,
    )
    experiment = of_one_fold(whole.experiment, place.name)
    if mode_of(whole.experiment) == "fold-by-fold":
        return replace(whole, experiment=experiment, splits=picked)
    cores = CoreMap(whole.experiment.machine.pin, (job.cores,)) if job.pinned else NOT_PINNED
    return Task(experiment, picked, job.threads, cores)


def train_fold(engine: Engine, setting: Setting, job: Job, listen: Emit) -> dict[str, Any]:
    """Train one fold, from its checkpoint where there is one, and return its result."""
    task, store = task_of(setting, job), setting.store
    number, clock, resumption = job.run, Clock(), None
    if number is None:
        written = of_one_fold(setting.written, job.place.name)
        number = store.create(written, kind=FOLD, facts=_facts(setting, job, task))
    else:
        clock, resumption = take_up(store, store.find(number))
    return execute(MeasuredEngine(engine, setting, job), task, store, number, clock, listen, resumption).result


class MeasuredEngine(Engine):
    """Another engine, after which the network is measured on all parts, and the fold's place in the whole is told."""

    def __init__(self, engine: Engine, setting: Setting, job: Job) -> None:
        self.engine = engine
        self.name = engine.name
        self.setting = setting
        self.job = job

    def run(self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train, then measure."""
        began = self.job.began
        if began is None:  # `start` counts from the origin of the fold's clock, a resumed fold has started before
            began = self.setting.clock.now() if resumption else clock.origin - self.setting.clock.origin
        seen: dict[str, float] = {}

        def watch(event: Event) -> None:
            if isinstance(event, Metric) and event.part == "validation":
                seen[event.name] = event.value
            emit(event)

        outcome = self.engine.run(task, clock, watch, resumption)
        asked = perf_counter()
        best_kept = task.experiment.training.patience is not None
        parts = _measure(task, outcome, {} if best_kept else seen)
        if outcome.outputs is not None and task.checkpoints is not None:
            checkpoint.save(outcome.outputs, task.checkpoints.parent / OUTPUTS)
        times = outcome.result["times"]
        times["evaluate"] = times.get("evaluate", 0.0) + perf_counter() - asked
        outcome.result["crossval"] = {
            "metrics": parts,
            "began": began,
            "first_step": began + (0.0 if resumption else times.get("start", 0.0)),
            "ended": self.setting.clock.now(),
            "cores": list(self.job.cores),
            "threads": self.job.threads,
        }
        return outcome


def _measure(task: Task, outcome: Outcome, validation: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return the metrics on train, validation and test; what the engine has measured is not measured again."""
    experiment, splits = task.experiment, task.splits
    device = devices.resolve(experiment.machine.device)
    network = make_network(task).to(device)
    network.load_state_dict(outcome.weights)
    loss = choose_loss(experiment.training, splits.classes)
    metrics = choose_metrics(experiment.training, splits.classes)

    def measured(part: Any) -> dict[str, float]:
        return evaluate(network, part, loss, metrics, precision=experiment.training.precision)

    before = torch.get_num_threads()
    torch.set_num_threads(task.threads * task.workers)
    try:
        test = outcome.result["metrics"] if outcome.result["part"] == "test" else {}
        return {
            "train": measured(splits.train),
            "validation": validation or measured(splits.validation),
            "test": dict(test) or (measured(splits.test) if splits.test is not None else {}),
        }
    finally:
        torch.set_num_threads(before)


def _facts(setting: Setting, job: Job, task: Task) -> dict[str, Any]:
    place, data = job.place, setting.facts["data"]
    return setting.facts | {
        "data": data | {"train": len(place.train), "validation": len(place.validation)},
        "shards": audit(task),
        "cores": task.cores.record(),
        "crossval": {"parent": setting.parent, "fold": place.fold, "repeat": place.repeat, "node": place.node},
    }
