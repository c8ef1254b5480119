"""`tenfold.compare`: run an experiment over a grid of settings, record the runs, and compare them."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

from tenfold.api.train import Shown, both, continue_cross_validation, cross_validate, finished_run, train_and_record
from tenfold.common.files import short_path
from tenfold.common.imports import Origin
from tenfold.crossval import CrossValidation
from tenfold.data.loading import is_one_part
from tenfold.engines import require_no_launcher
from tenfold.errors import ExperimentError, StopTraining, StoreError, TenfoldError, TrainingError
from tenfold.executors.jobs import Job, JobEnd
from tenfold.executors.submitting import LOCAL, Asked, Submitter, executor_named, follow_jobs
from tenfold.experiment import FIELDS, FOLD_FIELDS, SECTIONS, STAGE_FIELDS, Experiment, Parallel
from tenfold.experiment.experiment import fields_by_name
from tenfold.experiment.field_types import Grid
from tenfold.experiment.values import TakesList, label_of
from tenfold.machine.metadata import collect_metadata, measuring_machine, origin, user_files
from tenfold.mixing.strategies import exchange_pattern
from tenfold.registry import SOURCES, suggest
from tenfold.reports.comparison import Comparison
from tenfold.reports.comparison_rows import NOT_VALIDATED, require_columns
from tenfold.reports.differences import describe_settings
from tenfold.reports.display import is_watched
from tenfold.reports.loggers import make_loggers
from tenfold.reports.progress import GridProgress, Turn
from tenfold.runs import Run, Store
from tenfold.runs.bundle import Bundle, unpack
from tenfold.runs.callbacks import Callbacks, as_list
from tenfold.runs.claim import Claim
from tenfold.runs.events import Emit, Stopwatch, ignore
from tenfold.runs.open_run import open_run
from tenfold.runs.run import as_asked
from tenfold.runs.store import CROSSVAL, one_invocation
from tenfold.workers.task import Mixing, resolve_defaults

KIND = "compare"
WAIT_SECONDS = 0.5
"""How often to look whether another comparison has run a setting."""


Watch = Callable[[Turn], None]


class ReusableRun(NamedTuple):
    """A run, with the digests of the user's files it was trained with."""

    id: int
    user_files: dict[str, str]


@fields_by_name
@one_invocation()
def compare(
    experiment: Experiment | None = None,
    *,
    together: Sequence[Mapping[str, Any]] = (),
    repeats: int = 1,
    runs: str | Path | None = None,
    fresh: bool = False,
    rerun_doubtful: bool = False,
    columns: Sequence[str] = (),
    select: bool = False,
    on: Asked | Submitter = LOCAL,
    watch: Watch | None = None,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    **grid: Unpack[Grid],
) -> Comparison:
    """Run an experiment with every combination of the listed settings, and return the comparison.

    `compare(experiment, workers=[1, 2, 4], strategy=["allreduce", "butterfly"], repeats=3)`: a list is a dimension of
    the grid; any other value changes the experiment. `together` lists settings that change together and are combined
    with the rest of the grid: `together=[{"pin": "0", "threads": 1}, {"pin": "0,1", "threads": 2}]`. Repeats differ
    in the seed and are interleaved, so a machine that slows down affects all settings. If `folds` is set, every
    setting is cross-validated.

    Recorded runs are reused, and their rows say so. A setting runs again with `fresh`; if it was recorded on another
    host, processor or number of cores, or with another version of torch or Tenfold; and if a data file or a module that
    the experiment names has changed. `rerun_doubtful` also repeats runs that other programs disturbed. If another
    comparison in the same store is running a setting, this one waits for it. Of strategies that exchange the same
    messages with the given number of workers, only one runs. Failures are reported and do not stop the rest.

    `columns` replaces the default columns (see `Comparison.with_columns`); `select` selects the best setting on
    the validation part and shows the test part only for it (see `Comparison.select`).

    `on` is where the runs are trained: "local", one after another on this machine, or as jobs of "processes", "dask",
    "ray", any `concurrent.futures.Executor`, or a function that creates one, given the cores of a job
    (docs/many-machines.md). The rows are the same, but the events of a run arrive when it has finished. Runs recorded
    by the same executor are reused.

    `watch` is called with a `Turn` when a run begins and when it finishes, and `listen` and `callbacks` with every
    event of every run; `log` is as in `train`. `progress` shows a line for each run; by default on a terminal and in
    a notebook.
    """
    require_no_launcher("a comparison")
    base, dimensions = split_grid(Experiment.given(experiment), dict(grid))
    planned, left_out = drop_repeated(experiments_of(base, dimensions, repeats, together))
    dimensions |= {name: [item[name] for item in together if name in item] for item in together for name in item}
    _require_own_names(planned)
    require_columns(
        columns, ("accuracy", "loss", *(name for experiment in planned for name in experiment.training.metric_names))
    )
    if select and not any(map(_may_validate, planned)):
        raise ExperimentError(NOT_VALIDATED)
    submitter = executor_named(on)
    store = Store(runs)
    callbacks = [*as_list(callbacks), *make_loggers(log, store.folder)]
    with submitter or nullcontext(), showing_runs(progress, watch, listen) as (watch, listen):
        if submitter is not None:
            follow_jobs(submitter, listen or ignore, Stopwatch())
        running = GridRun(
            planned=planned,
            label_of=partial(_label, dimensions=dimensions, repeats=repeats),
            store=store,
            submitter=submitter,
            fresh=fresh,
            callbacks=callbacks,
            listen=listen,
            watch=watch,
        )
        running.run()
        if rerun_doubtful:
            running.rerun_doubtful()
    done, failed = running.runs, running.failed
    if not done:
        reasons = "; ".join(dict.fromkeys(failed.values()))
        none = f"none of the {len(planned)} runs could be done" if len(planned) > 1 else "the run could not be done"
        raise ExperimentError(f"{none}: {reasons}")
    result = Comparison(done, failed, left_out, reused=running.reused)
    result = result.select() if select else result
    return result.with_columns(*columns) if columns else result


def _may_validate(experiment: Experiment) -> bool:
    """Return whether the runs of an experiment can have a validation part; the user's data may include one."""
    built_in = experiment.data.name in SOURCES
    return not built_in or experiment.data.validation_fraction > 0 or experiment.parallel.folds is not None


@dataclass(kw_only=True)
class GridRun:
    """A comparison in progress: the runs of its grid."""

    planned: Sequence[Experiment]
    label_of: Callable[[Experiment], str]
    store: Store
    submitter: Submitter | None
    fresh: bool
    callbacks: Sequence[object]
    listen: Emit | None
    watch: Watch
    done: dict[int, Run] = field(default_factory=dict, init=False)
    """By place in the grid, from 1."""
    failed: dict[str, str] = field(default_factory=dict, init=False)
    """Why runs failed, by label."""
    reused: set[int] = field(default_factory=set, init=False)
    """The numbers of the runs that were recorded before."""
    _recorded: dict[str, ReusableRun] = field(default_factory=dict, init=False)

    @property
    def runs(self) -> list[Run]:
        return [self.done[place] for place in sorted(self.done)]

    def run(self) -> None:
        """Run the settings that are not recorded yet, starting with those that no other comparison is running."""
        turns = [
            Turn(place, len(self.planned), self.label_of(item), item) for place, item in enumerate(self.planned, 1)
        ]
        self._recorded = {} if self.fresh else _reusable_runs(self.store, self.submitter)
        if self.submitter is not None:
            with ExitStack() as claims:
                missing = [turn for turn in turns if self._is_job(turn) and not self._reuse(turn)]
                if not self.fresh:
                    missing = [turn for turn in missing if claims.enter_context(_claiming(turn.experiment, self.store))]
                self._submit(self.submitter, missing)
        for turn in turns:
            if turn.place not in self.done and turn.label not in self.failed:
                self._run_alone(turn)

    def rerun_doubtful(self) -> None:
        doubtful = {_stored_experiment(run) for run in Comparison(self.runs, self.failed).doubtful}
        again = replace(self, planned=[item for item in self.planned if stored(item) in doubtful], fresh=True)
        again.run()
        renewed = {_stored_experiment(run): run for run in again.runs}
        self.done = {place: renewed.get(_stored_experiment(run), run) for place, run in self.done.items()}
        self.failed |= again.failed

    def _is_job(self, turn: Turn) -> bool:
        """Return whether a setting is a single job; in a cross-validation, each fold is a job."""
        return self.submitter is not None and turn.experiment.parallel.folds is None

    def _reuse(self, turn: Turn) -> bool:
        """Reuse the recorded run of a setting, if there is one."""
        run = _reusable(turn.experiment, self._recorded, self.store)
        if run is not None:
            self.done[turn.place] = run
            self.reused.add(run.id)
            self.watch(replace(turn, run=run, recorded=True))
        return run is not None

    def _submit(self, submitter: Submitter, turns: Sequence[Turn]) -> None:
        """Run settings as jobs, and record each when it returns."""
        # start again instead of continuing the jobs of another command or of an older version of a file
        scopes = ["" if self.fresh else json.dumps(user_files(turn.experiment)) for turn in turns]
        jobs = [
            Job.of(turn.experiment, KIND, label=turn.label, scope=scope)
            for turn, scope in zip(turns, scopes, strict=True)
        ]
        submitter.keep_in(self.store.folder)
        about = (self.store, self.callbacks, self.listen)
        for place, end in submitter.run(jobs):
            self._finish(turns[place], partial(record_end, turns[place].experiment, submitter, place, end, *about))

    def _run_alone(self, turn: Turn) -> None:
        """Run a setting; if another comparison is running it, wait and reuse that run."""
        with ExitStack() as claims:
            if not self.fresh and not self._reuse(turn):
                waits = partial(self.watch, replace(turn, waits=True))
                claims.enter_context(_claiming(turn.experiment, self.store, waits))
                self._recorded |= _reusable_runs(self.store, self.submitter)
                self._reuse(turn)
            if turn.place in self.done:
                return
            if self.submitter is not None and self._is_job(turn):
                self._submit(self.submitter, [turn])
            else:
                self._finish(turn, partial(self._train, turn.experiment))

    def _train(self, experiment: Experiment) -> Run:
        shown: Shown = {"callbacks": self.callbacks, "listen": self.listen, "progress": False}
        if experiment.parallel.folds is None:
            return finished_run(train_and_record(experiment, runs=self.store.folder, kind=KIND, **shown))
        begun = {} if self.fresh else _reusable_runs(self.store, self.submitter, "interrupted")
        if (run := _reusable(experiment, begun, self.store)) is not None:
            record = self.store.find(run.id)
            return continue_cross_validation(self.store, record, experiment, self.submitter, **shown)
        done: CrossValidation = cross_validate(experiment, runs=self.store.folder, on=self.submitter or LOCAL, **shown)
        return done.run

    def _finish(self, turn: Turn, train: Callable[[], Run]) -> None:
        self.watch(turn)
        try:
            self.done[turn.place] = _in_memory(train())
        except TenfoldError as error:
            self.failed[turn.label] = str(error).replace("\n", "; ")
            self.watch(replace(turn, error=self.failed[turn.label]))
        else:
            self.watch(replace(turn, run=self.done[turn.place]))


def record_end(
    experiment: Experiment,
    submitter: Submitter,
    place: int,
    end: JobEnd,
    store: Store,
    callbacks: Sequence[object],
    listen: Emit | None,
    complete: Callable[[Bundle], dict[str, Any]] = lambda _bundle: {},
) -> Run:
    """Record the run that a job returned, forward its events, and return the run; raise TrainingError if it failed.

    `complete` may add to the result of the run before it is recorded, and returns metadata to record with it.
    """
    bundle, error = end
    number = None
    if bundle:
        run = unpack(bundle)
        metadata = origin(experiment) | {"executor": submitter.name} | complete(run)
        number = store.import_run(run, experiment=experiment, metadata=metadata)
        submitter.recorded(place)
        listener = Callbacks(listen or ignore, callbacks)
        for event in store.events(number):
            with suppress(StopTraining):  # it has ended already
                listener(event)
    if error or number is None:
        raise TrainingError(error or "the job returned no run")
    return Run(store, store.find(number), experiment=experiment)


def _reusable(experiment: Experiment, recorded: Mapping[str, ReusableRun], store: Store) -> Run | None:
    """Return a recorded run of the experiment that used the same files; None if there is none."""
    candidate = recorded.get(stored(experiment))
    if candidate is None or candidate.user_files != user_files(experiment):
        return None
    with suppress(StoreError):  # removed since
        return _in_memory(open_run(candidate.id, runs=store.folder))
    return None


def _in_memory(run: Run) -> Run:
    """Read a run into memory, so its row remains if the run is removed before the comparison ends."""
    _ = run.metadata
    return run


@contextmanager
def _claiming(experiment: Experiment, store: Store, waits: Callable[[], None] | None = None) -> Iterator[bool]:
    """Lock an experiment in this store against other comparisons, and yield True.

    If another comparison holds the lock, yield False; with `waits`, call it and wait for the lock instead.
    """
    digest = hashlib.blake2b(stored(experiment).encode(), digest_size=8).hexdigest()
    folder = store.folder / "comparing" / digest
    claim = _take(folder)
    if claim is None and waits is not None:
        waits()
        while claim is None:
            time.sleep(WAIT_SECONDS)
            claim = _take(folder)
    try:
        yield claim is not None
    finally:
        if claim is not None:
            claim.release()
            with suppress(OSError):  # another comparison waits there
                folder.rmdir()
                folder.parent.rmdir()


def _take(folder: Path) -> Claim | None:
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return Claim.take(folder)
        except FileNotFoundError:  # another comparison has just removed the folder
            continue
        except OSError as error:
            raise StoreError(f"the run store {short_path(folder)} cannot be written to: {error.strerror}") from None


def stored(experiment: Experiment) -> str:
    """Return the stored form of an experiment, for comparison with recorded runs."""
    return experiment.model_dump_json()


def _stored_experiment(run: Run) -> str:
    """Return the stored form of the experiment that a run was started with."""
    return stored(as_asked(run.experiment, run.metadata))


def _require_own_names(planned: Iterable[Experiment]) -> None:
    """Raise an error for settings with equal records, such as two networks of the same class."""
    by_name: dict[str, Experiment] = {}
    for experiment in planned:
        if by_name.setdefault(stored(experiment), experiment) != experiment:
            raise ExperimentError(
                "two settings of the grid have the same name: Python objects are recorded by name; "
                "give functions or classes with different names"
            )


@contextmanager
def showing_runs(
    progress: bool | None, watch: Watch | None, listen: Emit | None
) -> Iterator[tuple[Watch, Emit | None]]:
    """Yield the listeners of turns and of events: the caller's functions, and a display.

    By default the display is shown on a terminal or in a notebook, unless the caller gave a listener.
    """
    shows = progress if progress is not None else watch is None and listen is None and is_watched()
    with GridProgress() if shows else nullcontext() as shown:
        if shown is None:
            yield watch or ignore, listen
        else:
            yield both(shown.watch, watch), both(shown.listen, listen)


def _reusable_runs(
    store: Store, submitter: Submitter | None = None, status: Literal["finished", "interrupted"] = "finished"
) -> dict[str, ReusableRun]:
    """Return the runs that can be reused or continued, keyed by their experiment; it contains no Python objects.

    They were made on this machine, or by the same executor (whose machines are not known in advance) and versions.
    """
    reusable, here = {}, measuring_machine({"machine": collect_metadata()})

    def is_comparable(recorded: dict[str, Any]) -> bool:
        then = measuring_machine(recorded)
        if submitter is not None:
            return recorded.get("executor") == submitter.name and then["versions"] == here["versions"]
        return "executor" not in recorded and then == here

    for record in store.records(KIND, CROSSVAL):
        whole = record["status"] == status and not record["result"].get("failed")
        if whole and not record["problems"] and is_comparable(record["metadata"]):
            with suppress(ExperimentError):  # a run of another version, which may have had other fields
                experiment = Experiment.recorded(record["experiment"], Origin(f"run {record['id']}"))
                metadata = record["metadata"]
                if not experiment.unrecorded_fields:
                    reusable[stored(as_asked(experiment, metadata))] = ReusableRun(
                        record["id"], metadata.get("user_files", {})
                    )
    return reusable


def _label(experiment: Experiment, dimensions: dict[str, list[Any]], repeats: int) -> str:
    flat = experiment.flat()
    names = [name for name in dimensions if len(dimensions[name]) > 1] or ["model", "data"]
    names = sorted(names, key=lambda name: name != "workers")
    described = describe_settings({name: flat[name] for name in names})
    return f"{described}, seed {flat['seed']}" if repeats > 1 and "seed" not in names else described


MOST_WORKERS = 8
"""The largest number of workers for which strategies are compared; beyond, hardly any two are equal."""


def split_grid(experiment: Experiment, grid: dict[str, Any]) -> tuple[Experiment, dict[str, list[Any]]]:
    """Separate fixed changes of the experiment from the dimensions of the grid."""
    grid = {key: _as_list(key, value) for key, value in grid.items()}
    fixed = {key: value for key, value in grid.items() if not _listed(key, value)}
    return experiment.replace(**fixed), {key: list(value) for key, value in grid.items() if _listed(key, value)}


def experiments_of(
    base: Experiment, dimensions: dict[str, list[Any]], repeats: int, together: Sequence[Mapping[str, Any]] = ()
) -> Iterable[Experiment]:
    """Yield the distinct experiments of a grid in the order in which they run; `together` as in `compare`."""
    if repeats < 1:
        raise ExperimentError(f"repeats = {repeats}: should be at least 1")
    for name in (*dimensions, *(name for item in together for name in item)):
        if name not in FIELDS:
            raise ExperimentError(f"'{name}' is not an experiment field; {suggest(name, FIELDS)}")
        if name in dimensions and any(name in item for item in together):
            raise ExperimentError(f"{name} is specified twice: in the grid and among the settings that change together")
        if not dimensions.get(name, [name]):
            raise ExperimentError(f"{name} = []: give at least one value to compare")
    seen: list[Experiment] = []
    for repeat in range(repeats):
        for *values, group in product(*dimensions.values(), together or [{}]):
            experiment = base.replace(**dict(zip(dimensions, values, strict=True)), **group)
            experiment = without_idle_fields(experiment.replace(seed=experiment.training.seed + repeat))
            if "divide" in dimensions or "divide" in group:
                experiment = _without_idle_stages(experiment)
            if experiment not in seen:  # equality distinguishes Python objects with the same name
                seen.append(experiment)
                yield experiment


def without_idle_fields(experiment: Experiment) -> Experiment:
    """Return the experiment with all defaults filled in, and without settings that have no effect.

    A single worker does not average, so its settings of `[parallel]`, except workers and folds, keep their
    defaults: one run is the baseline of all.
    """
    if experiment.parallel.workers == 1:
        kept = {name: getattr(experiment.parallel, name) for name in FOLD_FIELDS}
        experiment = experiment.replace(parallel=Parallel(**kept))
    return resolve_defaults(experiment)


def _without_idle_stages(experiment: Experiment) -> Experiment:
    """Return the experiment with pipeline fields at their defaults, unless its layers are divided."""
    if experiment.parallel.divide == "layers":
        return experiment
    kept = {name: value for name, value in dict(experiment.parallel).items() if name not in STAGE_FIELDS}
    return experiment.replace(parallel=Parallel(**kept))


def _as_list(key: str, value: Any) -> Any:
    """Convert the values of an array or a generator to a list; return data unchanged."""
    if key not in FIELDS or FIELDS[key][0] == "data":
        return value
    if getattr(value, "ndim", 0) == 1 and hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Iterator) else value


def _listed(key: str, value: Any) -> bool:
    """Return whether a field has several values; a field that takes a list needs a list of lists."""
    if not isinstance(value, list | range) or (key in ("data", "data.name") and is_one_part(value)):
        return False
    section, field = FIELDS.get(key, ("training", "seed"))
    takes_lists = any(isinstance(item, TakesList) for item in SECTIONS[section].model_fields[field].metadata)
    return not takes_lists or any(isinstance(item, list | tuple) or getattr(item, "ndim", 0) for item in value)


def drop_repeated(planned: Iterable[Experiment]) -> tuple[list[Experiment], list[str]]:
    """Drop experiments that exchange the same messages as another one; return the rest, and notes on the dropped."""
    kept: list[Experiment] = []
    earlier: list[tuple[Experiment, Any, str]] = []
    repeated: dict[tuple[int, str], list[str]] = {}
    for experiment in planned:
        exchange = _exchange(experiment)
        if exchange is not None:
            rest, name = (
                experiment.replace(strategy="allreduce", strategy_options={}),
                label_of(experiment.parallel.strategy),
            )
            first = next((other for same, pattern, other in earlier if pattern == exchange and same == rest), None)
            if first is not None and first != name:
                repeated.setdefault((experiment.parallel.workers, first), []).append(name)
                continue
            earlier.append((rest, exchange, name))
        kept.append(experiment)
    return kept, [_sentence(workers, first, names) for (workers, first), names in repeated.items()]


def _exchange(experiment: Experiment) -> Any:
    """Return the messages of a strategy; None where they are unknown or not needed."""
    parallel = experiment.parallel
    if not 1 < parallel.workers <= MOST_WORKERS:
        return None
    try:
        strategy = Mixing.of(parallel).strategy
        return exchange_pattern(strategy, parallel.workers, with_costs=experiment.machine.is_virtual)
    except TenfoldError:  # reported when it is run
        return None


def _sentence(workers: int, first: str, names: list[str]) -> str:
    others = list(dict.fromkeys(names))
    listed = " and ".join([", ".join(others[:-1]), others[-1]] if len(others) > 1 else others)
    return (
        f"with {workers} workers, {listed} {'is' if len(others) == 1 else 'are'} the same exchange as {first}: run once"
    )
