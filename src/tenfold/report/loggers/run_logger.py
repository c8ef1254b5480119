"""What all loggers share: a callback that passes a run's numbers on, and whose errors do not stop the run."""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenfold.runs import Store
from tenfold.runs.callbacks import Callback
from tenfold.runs.events import Ended, EpochEnded, FoldChanged, FoldsStarted, Metric, Recorded, Started


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
        """Begin to log a run, given what the store knows of it and its folder; earlier steps were logged before."""

    @abstractmethod
    def write(self, fold: str, name: str, value: float, step: int) -> None:
        """Log a number, of a fold or (if that is empty) of the run."""

    @abstractmethod
    def flush(self) -> None:
        """Make what was logged visible."""

    @abstractmethod
    def close(self, status: str, /) -> None:
        """End the log of the run: finished, failed or interrupted."""

    def on_recorded(self, event: Recorded) -> None:
        """Take note of the run."""
        self._run, self._folds, self._is_open = Store(self.runs).find(event.run), (), False

    def on_run_start(self, event: Started | FoldsStarted) -> None:
        """Open the log."""
        if self._run is None:
            return
        self._folds = event.names if isinstance(event, FoldsStarted) else ()
        first = event.epoch * event.steps_per_epoch + 1 if isinstance(event, Started) else 1
        run, folder = self._run, Store(self.runs).path(self._run["id"], self._run["title"])
        self._is_open = True
        self._try(lambda: self.open(run, folder, first))

    def on_metric(self, event: Metric) -> None:
        """Log a number."""
        name, fold = f"{event.part}/{event.name}", ""
        if self._folds:
            fold = self._folds[event.fold_index] if event.fold_index < len(self._folds) else ""
        elif event.worker:
            name = f"{name}/worker {event.worker}"
        self._try(lambda: self.write(fold, name, event.value, event.step))

    def on_epoch_end(self, _event: EpochEnded) -> None:
        """Show the numbers of the epoch."""
        self._try(self.flush)

    def on_fold(self, _event: FoldChanged) -> None:
        """Show the numbers of the fold."""
        self._try(self.flush)

    def on_run_end(self, event: Ended) -> None:
        """Close the log."""
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
