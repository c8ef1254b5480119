"""MLflow: a run of the MLflow experiment "tenfold" for each run, wherever MLFLOW_TRACKING_URI points."""

import os
import re
import time
from pathlib import Path
from typing import Any

from tenfold.common.imports import optional_module
from tenfold.experiment import Experiment
from tenfold.report.loggers.run_logger import RunLogger

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
        """Create an MLflow run with the settings as parameters."""
        self._client = self._mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        known = self._client.get_experiment_by_name(name)
        home = known.experiment_id if known is not None else self._client.create_experiment(name)
        tags = {"tenfold.run": str(run["id"]), "tenfold.folder": str(folder), "tenfold.kind": run["kind"]}
        created = self._client.create_run(home, run_name=f"{run['id']} {run['title']}", tags=tags)
        self._id = created.info.run_id
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        fields = Experiment(**run["experiment"]).flat()
        settings = [
            self._entities.Param(key, str(value)[:LONGEST_VALUE]) for key, value in fields.items() if value is not None
        ]
        self._client.log_batch(self._id, params=settings)

    def write(self, fold: str, name: str, value: float, step: int) -> None:
        """Keep a number for the next batch, and send that when it is time."""
        key = re.sub(r"[^\w./ -]", "_", f"{fold}/{name}" if fold else name)
        self._waiting.append(self._entities.Metric(key, value, int(time.time() * 1000), step))
        if len(self._waiting) >= BATCH or time.monotonic() - self._sent > SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send the waiting numbers."""
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        if waiting:
            self._client.log_batch(self._id, metrics=waiting)

    def close(self, status: str, /) -> None:
        """Send the rest and end the MLflow run."""
        self.flush()
        self._client.set_terminated(self._id, STATUS.get(status, "FINISHED"))
