"""`tenfold.sweep`: search for the best values of an experiment's fields, in trials that are recorded as runs."""

import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Unpack

from tenfold.api.compare import record_end, showing_runs, stored, without_idle_fields
from tenfold.api.search import (
    SAMPLERS,
    Space,
    SpaceSearch,
    describe_space,
    read_space,
    recorded_value,
    sampler_name,
    split_space,
)
from tenfold.api.train import Shown, finished_run, noting
from tenfold.common.imports import Origin
from tenfold.common.metric_traits import LOSS, main_metric
from tenfold.engines import Outcome, RecordedRun, Resolved, require_no_launcher, resolve
from tenfold.engines.base import record_work, train_recorded
from tenfold.engines.one_device import cannot_train_together, train_together, with_numbers, without_numbers
from tenfold.engines.prepare import check_new_run, describe, prepare
from tenfold.errors import Diverged, ExperimentError, StopTraining, StoreError, TenfoldError, TrainingError
from tenfold.executors.jobs import OF_RUN, Job
from tenfold.executors.submitting import LOCAL, Asked, Submitter, executor_named, follow_jobs, recorded_executor
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import fields_by_name
from tenfold.machine.metadata import user_files
from tenfold.registry import suggest
from tenfold.reports.differences import describe_settings
from tenfold.reports.formatting import duration, grouped, metric_value
from tenfold.reports.loggers import make_loggers
from tenfold.reports.progress import Turn
from tenfold.reports.sweep import TIMES, Sweep, Trial, measure_importance
from tenfold.runs import Run, Store
from tenfold.runs.bundle import Bundle, BundledRecord, EndedRun
from tenfold.runs.callbacks import Callbacks, StopBehind, as_list
from tenfold.runs.events import Emit, Ended, EpochEnded, Event, Note, Recorded, Stopwatch, ignore
from tenfold.runs.run import as_trained
from tenfold.runs.store import SWEEP, TRIAL, absolute
from tenfold.runs.tables import RunRecord
from tenfold.training import choose_metrics
from tenfold.training.measures import require_direction
from tenfold.workers.task import Task

HALVING = 3
"""Successive halving looks after 1, 3, 9, ... epochs, and the best third of the trials continues."""
SUBMITTED_AT_ONCE = 16
"""How many trials an executor has at once, unless `at_once` says so."""
FEWEST_STACKED = 8
"""A sampler that looks back is asked for a quarter of the trials at once to step together, and at least for these."""
MOST_REFUSED = 200
"""After this many proposals in a row that are refused or have been tried, nothing new is expected."""

Watch = Callable[[Turn], None]


@fields_by_name
def sweep(
    experiment: Experiment | None = None,
    *,
    trials: int = 20,
    sampler: Any = "tpe",
    objective: str | None = None,
    prune: bool = False,
    stacked: bool | None = None,
    at_once: int | None = None,
    on: Asked | Submitter = LOCAL,
    runs: str | Path | None = None,
    fresh: bool = False,
    watch: Watch | None = None,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    **space: Any,
) -> Sweep:
    """Search for the best values of some fields, and record the sweep and every trial as runs.

    `sweep(experiment, lr="1e-3:1e-1:log", batch_size=[16, 64, 256], trials=50)`: text such as "16:256" or
    "1e-3:1e-1:log" is a range, a list contains values to choose from, and any other value changes the experiment.
    `sampler` is "tpe", "random", "qmc", "gp" or "cmaes" of Optuna, one of its sampler objects, or "grid": every
    combination of lists. Invalid combinations do not count as trials, and none is tried twice.

    `objective` is a metric on the validation part (or on the test part if there is none), by default the first one;
    "seconds", the training time; or "seconds_to_target", the time until the experiment's target was reached. `prune`
    stops trials early by successive halving: after 1, 3, 9, ... epochs a trial continues only if it is among the best
    third of all trials that have reached that epoch.

    The same call, also with more `trials`, continues an interrupted sweep; `fresh` starts a new one. `on` is where the
    trials are trained, as in `compare`, and `at_once` the number of trials that an executor runs at the same time.

    With `stacked`, the default on a GPU, up to `at_once` trials that differ only in lr, momentum, weight_decay and seed
    step together as rows of one matrix. Up to rounding, their weights are the same as when trained one after another.
    They share their time, and are not stopped individually.

    `watch`, `callbacks`, `log`, `listen` and `progress` are as in `compare`.
    """
    require_no_launcher("a sweep")
    runs = absolute(runs)
    base, varied = split_space(Experiment.given(experiment), space)
    if base.parallel.folds is not None or "folds" in varied:
        raise ExperimentError(
            "parallel.folds is set, but a trial of a sweep trains one model; leave it unset, or use `tenfold compare`"
        )
    for name, value in (("trials", trials), ("at_once", 1 if at_once is None else at_once)):
        if value < 1:
            raise ExperimentError(f"{name} = {value}: should be at least 1")
    return _sweep(
        without_idle_fields(base),
        varied,
        (lambda *_about: None) if fresh else _find_sweep,
        trials=trials,
        sampler=sampler,
        objective=objective,
        prune=prune,
        stacked=stacked,
        at_once=at_once,
        submitter=executor_named(on),
        runs=runs,
        watch=watch,
        shown={"callbacks": callbacks, "log": log, "listen": listen, "progress": progress},
    )


def continue_sweep(
    store: Store,
    record: RunRecord,
    experiment: Experiment,
    *,
    on: Asked | Submitter | None = None,
    watch: Watch | None = None,
    force: bool = False,
    **shown: Unpack[Shown],
) -> Sweep:
    """Continue an interrupted sweep, given its experiment; raise StoreError if only the original call can."""
    require_no_launcher("a sweep")
    number, details = int(record["id"]), record["metadata"]["sweep"]
    space = read_space(details["space"])
    command = record["metadata"].get("command") or "tenfold sweep ..."
    wanted = max(details["trials"], record["result"].get("sweep", {}).get("wanted", 0))
    if details["sampler"] not in SAMPLERS or not _is_read_again(experiment, space):
        raise StoreError(
            f"run {number} is a sweep over Python objects; to continue it, repeat the command that started it: "
            f"{command}"
        )
    return _sweep(
        experiment,
        split_space(experiment, space)[1],
        lambda *_about: number,
        trials=wanted,
        sampler=details["sampler"],
        objective=details["objective"],
        prune=details["prune"],
        submitter=executor_named(on or recorded_executor(record["metadata"])),
        runs=store.folder,
        watch=watch,
        shown=shown,
        force=force,
    )


def _is_read_again(experiment: Experiment, space: Mapping[str, Any]) -> bool:
    """Return whether recorded values can be used again: no names of Python objects, and no code to import."""
    trusted = {*experiment.import_paths}
    values = ((name, value) for name, values in space.items() if isinstance(values, list) for value in values)
    try:
        return all({*experiment.replace(**{name: value}).import_paths} <= trusted for name, value in values)
    except ExperimentError:
        return False


def _sweep(
    base: Experiment,
    varied: Space,
    find: Callable[[Store, Experiment, dict[str, Any]], int | None],
    *,
    trials: int,
    sampler: Any,
    objective: str | None,
    prune: bool,
    submitter: Submitter | None,
    runs: Path,
    watch: Watch | None,
    shown: Shown,
    stacked: bool | None = None,
    at_once: int | None = None,
    force: bool = False,
) -> Sweep:
    """Train the missing trials of the sweep that `find` returns, or of a new sweep."""
    stopwatch = Stopwatch()
    task = prepare(Resolved.of(base if submitter is None else base.replace(device="cpu")))  # no GPU needed here
    goal = Objective.choose(task, objective, prune=prune)
    if stacked and (submitter is not None or goal.name in TIMES):
        why = f"objective = {goal.name} is a time, which they share" if submitter is None else 'set on = "local"'
        raise ExperimentError(f"stacked trials train together in this process; {why}")
    if stacked is None:
        stacked = submitter is None and base.machine.device != "cpu" and goal.name not in TIMES
    store = Store(runs)
    metadata: dict[str, Any] = {
        "space": describe_space(varied),
        "sampler": sampler_name(sampler),
        "objective": goal.name,
    }
    metadata |= {"lower": goal.lower, "part": goal.part, "prune": prune}
    number = find(store, base, metadata)
    before: dict[str, Any] = store.find(number)["result"] if number is not None else {}
    asked = {int(trial): values for trial, values in before.get("sweep", {}).get("asked", {}).items()}
    num_trials = (
        len({record["metadata"]["trial"]["number"] for record in store.trials(number)} | set(asked)) if number else 0
    )
    search = SpaceSearch(varied, sampler, seed=base.training.seed + num_trials, lower=goal.lower)
    if number is None:
        about = describe(task) | ({"executor": submitter.name} if submitter is not None else {})
        number = store.create(base, kind=SWEEP, metadata=about | {"sweep": metadata | {"trials": trials}})
    else:
        stopwatch = Stopwatch(store.claim_and_restart(number, epoch=1, force=force))  # the events so far stay
    showing = showing_runs(shown.get("progress"), watch, shown.get("listen"))
    with submitter or nullcontext(), showing as (watch, listen):
        if submitter is not None:
            follow_jobs(submitter, listen or ignore, stopwatch)
            submitter.keep_in(store.folder)
        running = SweepRun(
            base=base,
            search=search,
            objective=goal,
            store=store,
            number=number,
            wanted=trials,
            prune=prune,
            submitter=submitter,
            stacked=stacked,
            at_once=at_once,
            before=before,
            asked=asked,
            stopwatch=stopwatch,
            callbacks=[*as_list(shown.get("callbacks", ())), *make_loggers(shown.get("log"), store.folder)],
            listen=listen or ignore,
            watch=watch,
        )
        outcome = record_work(running.run, store, number, stopwatch, ignore, partial=running.result)
    return Sweep(finished_run(RecordedRun.finished(store, number, outcome, base)))


def _find_sweep(store: Store, base: Experiment, metadata: dict[str, Any]) -> int | None:
    """Return the latest sweep of the same experiment over the same values; None if there is none."""
    wanted, files = stored(base), user_files(base)
    for record in reversed(store.records(SWEEP)):
        before = {name: record["metadata"].get("sweep", {}).get(name) for name in metadata}
        if before == metadata and record["metadata"].get("user_files", {}) == files:
            with suppress(ExperimentError):  # recorded by another version, possibly with other fields
                recorded = Experiment.recorded(record["experiment"], Origin(f"run {record['id']}"))
                if not recorded.unrecorded_fields and stored(recorded) == wanted:
                    return int(record["id"])
    return None


@dataclass(frozen=True)
class Objective:
    """The goal of a sweep."""

    name: str
    """A metric, or one of TIMES."""
    lower: bool
    """Whether lower values are better."""
    part: str
    """The part that a metric is measured on."""

    @classmethod
    def choose(cls, task: Task, name: str | None, *, prune: bool) -> "Objective":
        """Return the objective with this name, by default the first metric; ExperimentError for an unknown one."""
        training = task.experiment.training
        names = [*choose_metrics(training, task.splits.classes), LOSS]
        name = name or main_metric(names) or LOSS
        if name not in (*names, *TIMES):
            raise ExperimentError(f"objective = {name}: {suggest(name, (*names, *TIMES))}")
        if name == "seconds_to_target" and training.target is None:
            raise ExperimentError("objective = seconds_to_target needs a target: --target 0.99, or target=0.99")
        if name in TIMES:
            if prune:
                raise ExperimentError(f"prune compares a metric after each epoch, but objective = {name} is a time")
            return cls(name, lower=True, part=task.evaluation_part_name)
        if task.evaluation_part is None:
            raise ExperimentError(f"objective = {name} needs a validation part: set validation_fraction, such as 0.1")
        return cls(name, lower=require_direction(training, name, "objective"), part=task.evaluation_part_name)

    def score(self, events: Iterable[Event], result: dict[str, Any]) -> dict[str, Any]:
        """Return the record of a trial: its value, and the metric after each epoch."""
        if self.name in TIMES:
            return {"value": result.get(self.name), "curve": []}
        measured = (event.metrics.get(f"{self.part}_{self.name}") for event in events if isinstance(event, EpochEnded))
        curve = [value for value in measured if value is not None and math.isfinite(value)]
        kept = result.get("best_epoch") or len(curve)
        return {"value": curve[kept - 1] if 0 < kept <= len(curve) else None, "curve": curve}

    def behind(self, curves: Sequence[Sequence[float]], epochs: int) -> StopBehind:
        """Return the rule that stops a trial, given the curves of earlier ones, after 1, 3, 9, ... epochs.

        A trial continues if it is among the best third of all trials that have come as far, itself included, and always
        if it is the best (asynchronous successive halving: Li et al. 2020, "A system for massively parallel
        hyperparameter tuning").
        """
        needed: dict[int, float] = {}
        epoch = 1
        while epoch < epochs:
            reached = sorted((curve[epoch - 1] for curve in curves if len(curve) >= epoch), reverse=not self.lower)
            if reached:
                needed[epoch] = reached[max(1, (len(reached) + 1) // HALVING) - 1]
            epoch *= HALVING
        return StopBehind(f"{self.part}_{self.name}", self.lower, needed)


@dataclass(frozen=True)
class Proposal:
    """Values to try, and the experiment that tries them."""

    number: int
    values: dict[str, Any]
    experiment: Experiment
    asked: Any
    """For `SpaceSearch.tell`."""

    @property
    def recorded(self) -> dict[str, Any]:
        return {name: recorded_value(value) for name, value in self.values.items()}


@dataclass(kw_only=True)
class SweepRun:
    """A sweep in progress."""

    base: Experiment
    search: SpaceSearch
    objective: Objective
    store: Store
    number: int
    wanted: int
    """The number of trials."""
    prune: bool
    submitter: Submitter | None
    stacked: bool
    at_once: int | None
    stopwatch: Stopwatch
    callbacks: Sequence[object]
    listen: Emit
    watch: Watch
    before: dict[str, Any]
    """The result that is recorded of an earlier attempt."""
    asked: dict[int, dict[str, Any]]
    """The values of the trials that have begun and not ended, by their number, of an earlier attempt, too."""
    trials: dict[int, Trial] = field(default_factory=dict)
    """The trials that have ended, by their number."""
    _tried: dict[str, Trial | None] = field(default_factory=dict)
    """By the experiment as the store has it; None for a trial that has not ended."""
    _last_number: int = 0
    _refused: str = ""
    """Why values were refused last."""

    def run(self, emit: Emit) -> Outcome:
        self._continue_recorded(emit)
        proposals = self._proposals()
        if self.submitter is not None:
            self._submit(self.submitter, proposals, emit)
        elif self.stacked:
            few = max(FEWEST_STACKED, self.wanted // 4) if self.search.looks_back else self.wanted
            while batch := list(islice(proposals, self.at_once or few)):
                for group in grouped((stored(without_numbers(item.experiment)), item) for item in batch).values():
                    self._train_together(group, emit)
        else:
            for proposal in proposals:
                self._finish(proposal, partial(self._train, proposal), emit)
        if not any(trial.value is not None for trial in self.trials.values()):
            errors = [trial.error for trial in self.trials.values() if trial.error]
            raise TrainingError(
                f"no trial has a value of {self.objective.name}: {(errors or [self._refused or 'none finished'])[0]}"
            )
        return Outcome(self.result(), {})

    def result(self) -> dict[str, Any]:
        """Return the result so far: the best trial, and how much each field matters."""
        ended = [trial for trial in self.trials.values() if trial.status == "finished" and trial.value is not None]
        sign = 1 if self.objective.lower else -1
        best = min(ended, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)
        trained = self.store.find(best.run)["result"] if best is not None else {}
        about = {name: trained[name] for name in ("metrics", "part", "epochs", "workers", "threads") if name in trained}
        importance = measure_importance(ended, list(self.search.space))
        found: dict[str, Any] = {"best": best.run if best is not None else None, "importance": importance}
        found |= {"asked": self.asked, "wanted": self.wanted}
        return about | {"seconds": self._seconds(), "sweep": found}

    def _seconds(self) -> float:
        """Return the training time of all trials; the time of stacked trials counts once."""
        shared: dict[float, float] = {}
        alone = 0.0
        for record in self.store.trials(self.number):
            seconds = record["result"].get("seconds") or 0.0
            if record["metadata"].get("stacked"):
                shared[record["created"]] = max(shared.get(record["created"], 0.0), seconds)
            else:
                alone += seconds
        return alone + sum(shared.values())

    def _continue_recorded(self, emit: Emit) -> None:
        """Add the trials of an earlier attempt, and finish those that were interrupted.

        A trial that failed for a reason other than its values may be tried again.
        """
        for record in self.store.trials(self.number):
            trial = Trial.of(record)
            values = self.search.restore(trial.values)
            experiment = without_idle_fields(self.base.replace(**values))
            self._last_number = max(self._last_number, trial.number)
            if trial.status == "interrupted" and "executor" not in record["metadata"]:
                resume = partial(self._resume, record, experiment)
                self._finish(Proposal(trial.number, values, experiment, None), resume, emit)
            if trial.status == "finished" and "trial" not in record["result"]:  # ended just before the sweep did
                trial = self._score(trial.run)
            if trial.status in ("finished", "pruned") or trial.diverged:
                self.trials[trial.number] = self._tried[stored(experiment)] = trial
                self.search.add(trial)
            self.asked.pop(trial.number, None)

    def _proposals(self) -> Iterator[Proposal]:
        """Yield valid values that were not tried yet, until there are enough.

        Values of trials that had started when the sweep was interrupted come first, because their jobs may still be
        running.
        """
        begun = {number: self.search.restore(values) for number, values in self.asked.items()}
        experiments = {number: without_idle_fields(self.base.replace(**values)) for number, values in begun.items()}
        self._last_number = max(self._last_number, *begun, 0)
        self._tried |= dict.fromkeys(map(stored, experiments.values()))
        for number, values in begun.items():
            yield Proposal(number, values, experiments[number], self.search.ask_for(self.asked[number]))
        refused = 0
        while len(self._tried) < self.wanted and (self.search.is_grid or refused < MOST_REFUSED):
            if (proposed := self.search.ask()) is None:
                return
            asked, values = proposed
            refused += 1
            try:
                experiment = without_idle_fields(self.base.replace(**values))
                resolve(experiment)
            except ExperimentError as error:
                self._refused = str(error).partition("\n")[0]
                self.search.tell(asked, None)
                continue
            key = stored(experiment)
            if key in self._tried:
                self.search.tell(asked, self._tried[key])
                continue
            refused = 0
            self._last_number, self._tried[key] = self._last_number + 1, None
            proposal = Proposal(self._last_number, values, experiment, asked)
            self.asked[proposal.number] = proposal.recorded
            state = {"asked": self.asked, "wanted": self.wanted}
            result = self.before | {"sweep": self.before.get("sweep", {}) | state}
            self.store.update(self.number, result=result)  # before it starts, because this process may be killed
            yield proposal

    def _finish(self, proposal: Proposal, train: Callable[[], Run], emit: Emit) -> None:
        """Train a trial, tell the sampler its result, and report it."""
        label = describe_settings(proposal.recorded)
        turn = Turn(proposal.number, max(self.wanted, proposal.number), label, proposal.experiment)
        self.watch(turn)
        error = ""
        try:
            run = train()
        except TenfoldError as problem:
            error = str(problem).replace("\n", "; ")
            failed = (Trial.of(trial) for trial in reversed(self.store.trials(self.number)))
            trial = next((item for item in failed if item.number == proposal.number), None)
            self.watch(replace(turn, error=error))
        else:
            trial = Trial.of(self.store.find(run.id))
            self.watch(replace(turn, run=run))
        if proposal.asked is not None:
            self.search.tell(proposal.asked, trial)
        elif trial is not None:
            self.search.add(trial)
        if trial is not None:
            self.trials[trial.number] = self._tried[stored(proposal.experiment)] = trial
        self.asked.pop(proposal.number, None)
        name, value = self.objective.name, trial.value if trial is not None else None
        outcome = error or f"{name} {duration(value) if name in TIMES else metric_value(name, value)}"
        emit(Note(at=self.stopwatch.now(), text=f"trial {proposal.number}, {label}: {outcome}"))

    def _train(self, proposal: Proposal) -> Run:
        """Train a trial in this process and its worker processes."""
        resolved = resolve(proposal.experiment, noting(self.listen, Stopwatch()))
        task = resolved.engine.prepare(resolved)
        check_new_run(task)
        metadata = describe(task) | {"trial": self._place(proposal)}
        number = self.store.create(task.experiment, kind=TRIAL, metadata=metadata)
        train_recorded(resolved.engine.run, task, self.store, number, Stopwatch(), self._listener(task.experiment))
        return self._ended(number)

    def _train_together(self, proposals: Sequence[Proposal], emit: Emit) -> None:
        """Train trials that differ only in numbers together on one device, and record all of them together."""
        first = prepare(Resolved.of(proposals[0].experiment))
        reason = cannot_train_together(first) if len(proposals) > 1 else ""
        if reason or len(proposals) == 1:
            if reason:
                emit(Note(at=self.stopwatch.now(), text=f"trials are trained one after another: {reason}"))
            for proposal in proposals:
                self._finish(proposal, partial(self._train, proposal), emit)
            return
        check_new_run(first)
        label = f"{len(proposals)} trials together"
        self.watch(Turn(proposals[0].number, max(self.wanted, proposals[0].number), label, first.experiment))
        tasks = [with_numbers(first, proposal.experiment) for proposal in proposals]
        events: list[list[Event]] = [[Recorded(at=0.0, run=0)] for _ in tasks]
        created, stopwatch = time.time(), Stopwatch()
        outcomes = train_together(tasks, stopwatch, [each.append for each in events])
        metadata, trained = describe(first) | {"stacked": len(tasks)}, stopwatch.now()
        runs: list[tuple[EndedRun, Experiment, dict[str, Any]]] = []
        for proposal, task, outcome, heard in zip(proposals, tasks, outcomes, events, strict=True):
            error = str(outcome) if isinstance(outcome, TenfoldError) else ""
            status: Literal["finished", "failed"] = "failed" if error else "finished"
            heard.append(Ended(at=trained, status=status, error=error.partition("\n")[0]))
            result: dict[str, Any] = {"diverged": True} if isinstance(outcome, Diverged) else {}
            if isinstance(outcome, Outcome):
                result = outcome.result | {"total_seconds": trained, "problem": ""}
                result["trial"] = self.objective.score(heard, result)
            own = {"lr": {"base": task.metadata.base_lr, "scale": task.resolved.lr_scale}}
            record = BundledRecord(
                format=1,
                kind=TRIAL,
                status=status,
                created=created,
                ended=time.time(),
                error=error,
                host=socket.gethostname(),
                metadata=metadata | own | {"trial": self._place(proposal)},
                result=result,
            )
            weights, predictions = (
                (outcome.weights, outcome.predictions) if isinstance(outcome, Outcome) else (None, {})
            )
            runs.append((EndedRun(record, heard, weights, predictions), task.experiment, {}))
        numbers = self.store.import_runs(runs)
        said: set[str] = set()
        for proposal, number, (ended, *_) in zip(proposals, numbers, runs, strict=True):
            listener = Callbacks(self.listen, self.callbacks)
            for event in ended.events if self.callbacks or self.listen is not ignore else ():
                if isinstance(event, Note):  # a note about all trials is emitted once
                    if event.text in said:
                        continue
                    said.add(event.text)
                with suppress(StopTraining):  # it has ended already
                    listener(event)
            self._finish(proposal, partial(self._open, number), emit)

    def _open(self, number: int) -> Run:
        """Return the run of a trial that has been recorded; raise TrainingError if it failed."""
        run = Run(self.store, self.store.find(number))
        if run.status == "failed":
            raise TrainingError(run.error)
        return run

    def _resume(self, record: dict[str, Any], experiment: Experiment) -> Run:
        resolved = resolve(as_trained(experiment, Run(self.store, record)))
        resolved.engine.resume(resolved, self.store, record, self._listener(experiment))
        return self._ended(record["id"])

    def _submit(self, submitter: Submitter, proposals: Iterator[Proposal], emit: Emit) -> None:
        """Train trials as jobs of an executor, and record each when it returns."""
        submitted: list[Proposal] = []

        def jobs() -> Iterator[Job]:
            for proposal in proposals:
                submitted.append(proposal)
                label, scope = f"trial {proposal.number}", f"{OF_RUN}{self.number}, trial {proposal.number}"
                job = Job.of(proposal.experiment, TRIAL, label=label, scope=scope)
                yield replace(job, stop_behind=self._behind(proposal.experiment))

        for place, end in submitter.run(jobs(), at_once=self.at_once or SUBMITTED_AT_ONCE):
            proposal = submitted[place]

            def complete(bundle: Bundle, proposal: Proposal = proposal) -> dict[str, Any]:
                bundle.record.result["trial"] = self.objective.score(bundle.events, bundle.record.result)
                return {"trial": self._place(proposal)}

            about = (proposal.experiment, submitter, place, end, self.store)
            self._finish(proposal, partial(record_end, *about, self.callbacks, self.listen, complete), emit)

    def _place(self, proposal: Proposal) -> dict[str, Any]:
        return {"parent": self.number, "number": proposal.number, "values": proposal.recorded}

    def _behind(self, experiment: Experiment) -> StopBehind | None:
        if not self.prune:
            return None
        return self.objective.behind([trial.curve for trial in self.trials.values()], experiment.training.epochs)

    def _listener(self, experiment: Experiment) -> Emit:
        behind = self._behind(experiment)
        return Callbacks(self.listen, [*self.callbacks, *([behind] if behind is not None else [])])

    def _ended(self, number: int) -> Run:
        self._score(number)
        return self._open(number)

    def _score(self, number: int) -> Trial:
        """Record the value of a trial that has ended."""
        result = self.store.find(number)["result"]
        scored = self.objective.score(self.store.events(number, "lifecycle"), result)
        self.store.update(number, result=result | {"trial": scored})
        return Trial.of(self.store.find(number))
