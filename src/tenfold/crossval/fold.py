"""One fold of a cross-validation: its samples, its training, and its record."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.common.imports import describe_error
from tenfold.data import Fold, Part, SubsetPart, make_folds
from tenfold.data.loading import with_same_scaling
from tenfold.engines import Outcome
from tenfold.engines.base import Train, open_for_resume, train_recorded
from tenfold.engines.prepare import audit, installed_engine
from tenfold.errors import TenfoldError
from tenfold.experiment import FOLD_FIELDS, Experiment, Parallel
from tenfold.experiment.values import AUTO
from tenfold.machine.cores import NOT_PINNED, CoreMap, using_threads
from tenfold.registry import ENGINES
from tenfold.runs import Store, checkpoint, stored_predictions
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Emit, Event, Metric, Stopwatch
from tenfold.runs.run import fold_name
from tenfold.runs.store import FOLD
from tenfold.training import choose_loss, choose_metrics
from tenfold.training.evaluation import evaluate_share, make_predictions, values_of, without_large_outputs
from tenfold.workers.task import Resolved, Task, make_network


@dataclass(frozen=True)
class FoldMode(ABC):
    """Defines how folds are trained: how many at the same time, and with how many workers each."""

    experiment: Experiment
    name: ClassVar[str]
    by_node: ClassVar[bool] = False
    """Whether each worker is a node that divides its own shard into folds."""
    one_by_one: ClassVar[bool] = False
    """Whether folds are trained one after another, each with all workers."""

    @classmethod
    def of(cls, experiment: Experiment) -> "FoldMode":
        """Return the mode of an experiment, with "auto" resolved."""
        from tenfold.crossval.modes import FOLD_MODES  # its classes derive from this one

        name = experiment.parallel.fold_mode
        if name == "auto" and has_own_engine(experiment):
            name = "fold-by-fold"
        elif name == "auto" and experiment.machine.device != "cpu":
            name = "stacked"
        elif name == "auto":
            name = "fold-by-fold" if experiment.parallel.workers > 1 else "folds-over-workers"
        return FOLD_MODES[name](experiment)

    @property
    def unsupported(self) -> str | None:
        """A sentence about why this mode cannot train the folds; None if it can."""
        return None

    @property
    def shares_folds(self) -> bool:
        """Whether all workers train each fold together and average in rounds."""
        return self.one_by_one

    @property
    def trains_together(self) -> bool:
        """Whether all folds are trained together on one device."""
        return False

    def turns(self, models: int) -> int:
        """Return the number of models that the busiest worker trains one after another."""
        return models

    @abstractmethod
    def train(self, work: "FoldWork") -> None:
        """Train folds, pass on their events, and report the end of each."""


def has_own_engine(experiment: Experiment) -> bool:
    """Return whether the experiment uses an engine that is not built in."""
    engine = experiment.machine.engine
    if engine == AUTO:
        return installed_engine(experiment) is not None
    return not isinstance(engine, str) or engine not in ENGINES.built_in


def fold_experiment(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment that trains one fold: without folds, and with one worker unless workers share each fold."""
    defaults = Parallel()
    if FoldMode.of(experiment).shares_folds:
        parallel = experiment.parallel.model_copy(update={field: getattr(defaults, field) for field in FOLD_FIELDS})
    else:
        parallel = defaults
    return experiment.replace(parallel=parallel, name=f"{experiment.title}, {name}")


@dataclass(frozen=True)
class FoldSplit(Fold):
    """A fold of the training part or of one node's shard of it; samples are indices into the training part."""

    node: int
    """The node's number, from 1, if every node has its own shard; otherwise 0."""

    @property
    def key(self) -> tuple[int, int, int]:
        """The node, repeat and fold, which identify it within the cross-validation."""
        return self.node, self.repeat, self.fold

    @property
    def name(self) -> str:
        """Its name in titles and messages: "fold 3", "node 1, repeat 2, fold 3"."""
        return fold_name(self.fold, self.repeat, self.node)


def make_fold_splits(task: Task) -> list[FoldSplit]:
    """Return the split of every model, in training order, without the test part.

    With fold_mode = "data-and-folds" each node splits its own shard into folds; otherwise the whole training part is
    split.
    """
    experiment, splits = task.experiment, task.splits
    parallel = experiment.parallel
    targets = splits.train.targets if parallel.fold_kind == "plain" else splits.train.read_targets()
    by_node = FoldMode.of(experiment).by_node
    sources = list(task.shards) if by_node else [np.arange(len(splits.train))]
    fold_splits = []
    for node, samples in enumerate(sources, 1):
        cut = make_folds(
            len(samples) if targets is None else targets[samples],
            parallel.folds or 2,
            parallel.fold_kind,
            repeats=parallel.fold_repeats,
            seed=experiment.data.split_seed,
            groups=None if splits.groups is None else splits.groups[samples],
        )
        fold_splits += [
            FoldSplit(item.fold, item.repeat, samples[item.train], samples[item.validation], node if by_node else 0)
            for item in cut
        ]
    return sorted(fold_splits, key=lambda split: (split.repeat, split.fold, split.node))


OUTPUTS = "test_outputs.pt"
"""The file with a fold's outputs on the test part for the vote, if its stored predictions do not contain them all."""


@dataclass(frozen=True)
class FoldJob:
    """One fold to train, and the cores to train it on."""

    index: int
    """Its position in the cross-validation, from 0."""
    split: FoldSplit
    threads: int = 1
    cores: tuple[int, ...] = ()
    """The cores it uses: CPU numbers if it is pinned, otherwise slots counted from 0."""
    pinned: bool = False
    run: int | None = None
    """The run of an earlier attempt at the same fold, to be resumed."""
    began: float | None = None
    """When training began, for a fold that is recorded after training."""


@dataclass(frozen=True)
class FoldContext:
    """Settings that all folds of a cross-validation share, apart from its task."""

    stored_experiment: Experiment
    """The experiment of the cross-validation as stored, with names in place of Python objects."""
    store: Store
    parent: int
    """The run number of the cross-validation."""
    metadata: dict[str, Any]
    """The metadata recorded with the cross-validation and, except for the data, with every fold."""
    stopwatch: Stopwatch
    """The stopwatch of the cross-validation."""


@dataclass(frozen=True)
class FoldEnd:
    """The outcome of one fold: a result or an error."""

    result: dict[str, Any] | None = None
    error: str = ""


@dataclass(frozen=True)
class FoldWork:
    """The folds that a fold mode trains, and its callbacks."""

    task: Task
    """The task of the cross-validation."""
    context: FoldContext
    jobs: Sequence[FoldJob]
    relay: Callable[[int, Event], None]
    """Called with the index of a fold and an event in it."""
    done: Callable[[FoldJob, FoldEnd], None]
    """Called when a fold has ended."""
    stopped: Callable[[], bool]
    """Returns whether to stop before the next fold."""


def resolve_fold(experiment: Experiment, split: FoldSplit) -> Resolved:
    """Return the resolved experiment that trains one fold."""
    return Resolved.of(fold_experiment(experiment, split.name))


def fold_task(crossval_task: Task, job: FoldJob) -> Task:
    """Return the task of one fold, which shares the data of the cross-validation without a copy."""
    splits = replace(
        crossval_task.splits,
        train=SubsetPart(crossval_task.splits.train, job.split.train),
        validation=SubsetPart(crossval_task.splits.train, job.split.validation),
        groups=None,
        copy_seconds=0.0,  # the folds share data that were copied once
        numbers=crossval_task.splits.numbers | {"validation": _numbers(crossval_task, job.split.validation)},
    )
    splits = with_same_scaling(splits)
    task = replace(crossval_task, resolved=resolve_fold(crossval_task.experiment, job.split), splits=splits)
    if FoldMode.of(crossval_task.experiment).one_by_one:
        return task
    cores = CoreMap(crossval_task.experiment.machine.pin, (job.cores,)) if job.pinned else NOT_PINNED
    return replace(task, threads=max(1, job.threads // task.workers), cores=cores, checkpoints=None)


def _numbers(crossval_task: Task, samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices in the original data of some samples of the training part."""
    numbers = crossval_task.splits.numbers.get("train")
    return samples if numbers is None else numbers[samples]


def train_fold(train: Train, crossval_task: Task, context: FoldContext, job: FoldJob, listen: Emit) -> FoldEnd:
    """Train one fold, starting from its last checkpoint if there is one, measure it, and record it as a run.

    An error ends only this fold, and is returned.
    """
    validation: dict[str, float] = {}

    def watch(event: Event) -> None:
        if isinstance(event, Metric) and event.part == "validation":
            validation[event.name] = event.value
        listen(event)

    def finish(task: Task, outcome: Outcome) -> None:
        _measure_fold(task, outcome, validation)
        outcome.result["crossval"] |= {
            "began": began,
            "ended": context.stopwatch.now(),
            "cores": list(job.cores),
            "threads": job.threads,
        }

    try:
        task = fold_task(crossval_task, job)
        run, stopwatch, resumption = _open_run(context, job, task)
        began = job.began
        if began is None:  # a fold's stopwatch starts with the fold, or earlier if the fold is resumed
            began = context.stopwatch.now() if resumption else stopwatch.origin - context.stopwatch.origin
        outcome = train_recorded(
            train, task, context.store, run, stopwatch, watch, resumption, before_end=finish, can_resume=False
        )
    except TenfoldError as error:
        return FoldEnd(error=str(error))
    except Exception as error:
        return FoldEnd(error=describe_error(error))
    return FoldEnd(outcome.result)


def _open_run(context: FoldContext, job: FoldJob, task: Task) -> tuple[int, Stopwatch, Resumption | None]:
    """Create or resume the run of a fold; return its number, its stopwatch and the checkpoint to resume from."""
    store = context.store
    if job.run is not None:
        return job.run, *open_for_resume(store, store.find(job.run))
    stopwatch = Stopwatch()
    experiment = fold_experiment(context.stored_experiment, job.split.name)
    return store.create(experiment, kind=FOLD, metadata=_metadata(context, job, task)), stopwatch, None


def _measure_fold(task: Task, outcome: Outcome, validation: dict[str, float]) -> None:
    """Measure a trained fold on all parts, for "crossval" in its result, and save its outputs for the vote."""
    began = perf_counter()
    is_best_epoch = task.experiment.training.patience is not None  # whose metrics are not the last epoch's
    outcome.result["crossval"] = {"metrics": _measure(task, outcome, {} if is_best_epoch else validation)}
    _save_outputs(task, outcome)
    times = outcome.result["times"]
    times["evaluate"] = times.get("evaluate", 0.0) + perf_counter() - began


def _save_outputs(task: Task, outcome: Outcome) -> None:
    """Save a fold's outputs on the test part for the vote, unless they are stored as its predictions anyway.

    If not all outputs are kept, the vote computes them again.
    """
    if outcome.outputs is None or task.checkpoints is None:
        return
    one_output = isinstance(outcome.outputs, torch.Tensor)  # only the main output is stored as predictions
    if not one_output or "test" not in outcome.predictions:
        checkpoint.save_tensors(outcome.outputs, task.checkpoints.parent / OUTPUTS)


def _measure(task: Task, outcome: Outcome, validation: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return the metrics on train, validation and test, reusing the metrics measured during training."""
    experiment, splits = task.experiment, task.splits
    network = make_network(task)
    network.load_state_dict(outcome.weights)
    loss = choose_loss(experiment.training, splits.classes, splits.loss_unit)
    metrics = choose_metrics(experiment.training, splits.classes)

    def measured(name: str) -> dict[str, float]:
        part: Part | None = getattr(splits, name)
        if part is None:
            return {}
        stores = name != "train" and experiment.training.save_predictions and name not in outcome.predictions
        share = evaluate_share(
            network,
            part,
            torch.arange(len(part)),
            loss,
            metrics,
            precision=experiment.training.precision,
            keep=stored_predictions.LIMIT if stores else 0,
            name=name,
        )
        values = values_of(share, part, loss, metrics, name=name)
        if stores and (made := make_predictions(experiment.training, splits, name, without_large_outputs(share))):
            outcome.predictions[name] = made
        return values

    test = outcome.result["metrics"] if outcome.result["part"] == "test" else {}
    with using_threads(task.threads * task.workers):
        return {
            "train": measured("train"),
            "validation": validation or measured("validation"),
            "test": dict(test) or measured("test"),
        }


def _metadata(context: FoldContext, job: FoldJob, task: Task) -> dict[str, Any]:
    split, data = job.split, context.metadata["data"]
    return context.metadata | {
        "data": data | {"train": len(split.train), "validation": len(split.validation)},
        "shards": audit(task),
        "cores": asdict(task.cores),
        "crossval": {"parent": context.parent, "fold": split.fold, "repeat": split.repeat, "node": split.node},
    }
