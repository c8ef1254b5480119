"""Loggers that pass a run's numbers on to TensorBoard and MLflow."""

import os
import re
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tenfold import registry
from tenfold.common.imports import Origin, optional_module
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.launchers import detect_world
from tenfold.registry import suggest
from tenfold.runs import Store
from tenfold.runs.callbacks import Callback
from tenfold.runs.events import Ended, EpochEnded, FoldChanged, FoldsStarted, Metric, Recorded, Started
from tenfold.runs.store import absolute


class RunLogger(Callback):
    """Writes the numbers of each run to another program's store, one run after another.

    An error of that store is reported once, as a warning, and the rest of the run is not logged.
    """

    name: str
    """Its name in `log`: tensorboard or mlflow."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._run: dict[str, Any] | None = None
        self._folds: tuple[str, ...] = ()
        self._is_open = False

    @abstractmethod
    def open(self, run: dict[str, Any], folder: Path, first_step: int, /) -> None:
        """Begin to log a run, given its record in the store and its folder; earlier steps were logged before."""

    @abstractmethod
    def write(self, fold: str, name: str, value: float, step: int) -> None:
        """Log a number, of a fold or (if that is empty) of the run."""

    @abstractmethod
    def flush(self) -> None:
        """Make logged values visible."""

    @abstractmethod
    def close(self, status: str, /) -> None:
        """End the log of the run: finished, failed or interrupted."""

    def on_recorded(self, event: Recorded) -> None:
        self._run, self._folds, self._is_open = Store(self.runs).find(event.run), (), False

    def on_run_start(self, event: Started | FoldsStarted) -> None:
        if self._run is None:
            return
        self._folds = event.names if isinstance(event, FoldsStarted) else ()
        first = event.epoch * event.steps_per_epoch + 1 if isinstance(event, Started) else 1
        run, folder = self._run, Store(self.runs).path(self._run["id"], self._run["title"])
        self._is_open = True
        self._try(lambda: self.open(run, folder, first))

    def on_metric(self, event: Metric) -> None:
        name, fold = f"{event.part}/{event.name}", ""
        if self._folds:
            fold = self._folds[event.fold_index] if event.fold_index < len(self._folds) else ""
        elif event.worker:
            name = f"{name}/worker {event.worker}"
        self._try(lambda: self.write(fold, name, event.value, event.step))

    def on_epoch_end(self, _event: EpochEnded) -> None:
        self._try(self.flush)

    def on_fold(self, _event: FoldChanged) -> None:
        self._try(self.flush)

    def on_run_end(self, event: Ended) -> None:
        self._try(lambda: self.close(event.status))
        self._is_open = False

    def _try(self, action: Callable[[], None]) -> None:
        if not self._is_open:
            return
        try:
            action()
        except Exception as error:
            self._is_open = False
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            warnings.warn(f"{self.name} stopped logging this run: {reason}", stacklevel=2)


FOLDER = "tensorboard"


class TensorBoardLogger(RunLogger):
    """Writes scalars, a folder for each fold, and the experiment as text."""

    name = "tensorboard"

    def __init__(self, runs: Path) -> None:
        super().__init__(runs)
        optional_module("tensorboard", "log='tensorboard'", "tensorboard")
        self._writers: dict[str, Any] = {}

    def open(self, _run: dict[str, Any], folder: Path, first_step: int, /) -> None:
        self._folder, self._first_step = folder / FOLDER, first_step
        self._writers = {}
        text = (folder / "experiment.toml").read_text(encoding="utf-8")
        self._writer("").add_text("experiment", "".join(f"    {line}\n" for line in text.splitlines()))

    def write(self, fold: str, name: str, value: float, step: int) -> None:
        self._writer(fold).add_scalar(name, value, step)

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self, _status: str, /) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _writer(self, fold: str) -> Any:
        if fold not in self._writers:
            writing = optional_module("torch.utils.tensorboard", "log='tensorboard'", "tensorboard")
            folder = self._folder / fold.replace(" ", "-") if fold else self._folder
            purge = self._first_step if self._first_step > 1 else None
            self._writers[fold] = writing.SummaryWriter(str(folder), purge_step=purge)
        return self._writers[fold]


EXPERIMENT = "tenfold"
"""The MLflow experiment, unless MLFLOW_EXPERIMENT_NAME names another."""
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
LONGEST_VALUE = 500
BATCH, SECONDS = 500, 2.0
"""Numbers are sent in batches: when this many are waiting, or this many seconds after the last batch."""


class MlflowLogger(RunLogger):
    """Sends metrics, and the fields of the experiment as parameters."""

    name = "mlflow"

    def __init__(self, runs: Path) -> None:
        super().__init__(runs)
        self._mlflow = optional_module("mlflow", "log='mlflow'", "mlflow")
        self._entities = optional_module("mlflow.entities", "log='mlflow'", "mlflow")

    def open(self, run: dict[str, Any], folder: Path, _first_step: int, /) -> None:
        self._client = self._mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        existing = self._client.get_experiment_by_name(name)
        home = existing.experiment_id if existing is not None else self._client.create_experiment(name)
        tags = {"tenfold.run": str(run["id"]), "tenfold.folder": str(folder), "tenfold.kind": run["kind"]}
        created = self._client.create_run(home, run_name=f"{run['id']} {run['title']}", tags=tags)
        self._id = created.info.run_id
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        fields = Experiment.recorded(run["experiment"], Origin(f"run {run['id']}")).flat()
        settings = [
            self._entities.Param(key, str(value)[:LONGEST_VALUE]) for key, value in fields.items() if value is not None
        ]
        self._client.log_batch(self._id, params=settings)

    def write(self, fold: str, name: str, value: float, step: int) -> None:
        """Add a number to the next batch, and send the batch when it is due."""
        key = re.sub(r"[^\w./ -]", "_", f"{fold}/{name}" if fold else name)
        self._waiting.append(self._entities.Metric(key, value, int(time.time() * 1000), step))
        if len(self._waiting) >= BATCH or time.monotonic() - self._sent > SECONDS:
            self.flush()

    def flush(self) -> None:
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        if waiting:
            self._client.log_batch(self._id, metrics=waiting)

    def close(self, status: str, /) -> None:
        self.flush()
        self._client.set_terminated(self._id, STATUS.get(status, "FINISHED"))


def make_loggers(log: str | Sequence[str] | None, runs: str | Path | None) -> list[RunLogger]:
    """Return the loggers with these names, for runs in a folder; none on ranks that do not record."""
    names = [log] if isinstance(log, str) else list(log or ())
    for name in names:
        if name not in registry.LOGGERS:
            raise ExperimentError(f"unknown logger {name!r}; {suggest(str(name), registry.LOGGERS)}")
    world = detect_world() if names else None
    if world is not None and world.rank:
        return []
    return [registry.LOGGERS[name](absolute(runs)) for name in dict.fromkeys(names)]
