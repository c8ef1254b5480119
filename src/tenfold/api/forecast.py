"""`tenfold.forecast`: predict the time of every combination of settings."""

from functools import partial
from typing import Any, Unpack

from tenfold.api.experiment_grid import experiments_of, split_grid
from tenfold.crossval.predict_fold_times import predict_fold_times
from tenfold.data import Splits
from tenfold.engines import require_no_launcher
from tenfold.engines.prepare import prepare
from tenfold.experiment import Data, Experiment
from tenfold.experiment.call_errors import fields_by_name
from tenfold.experiment.field_types import Grid
from tenfold.launch.detect import detect_world
from tenfold.prediction.calibration import ReportProgress
from tenfold.prediction.calibration.measure_machine import silent
from tenfold.prediction.task_prediction import predict_task
from tenfold.report.live.follow import reporter
from tenfold.report.results.forecast_result import Forecast
from tenfold.workers.task import Task


@fields_by_name
def forecast(
    experiment: Experiment | None = None,
    *,
    progress: bool | ReportProgress | None = None,
    **settings: Unpack[Grid],
) -> Forecast:
    """Predict how long an experiment takes with every combination of the listed settings, without training.

    Where `folds` is set, the time is that of the whole cross-validation. `progress` shows what is measured on this
    machine: True anywhere, False nowhere, None where a person looks, or a function that is called with each line.
    """
    require_no_launcher("a forecast", detect_world())
    base, dimensions = split_grid(Experiment.given(experiment, engine="virtual"), dict(settings))
    return forecast_grid(base, dimensions, LoadedData(), reporter(progress))


class LoadedData:
    """The data of experiments that are predicted one after another; what several have in common is loaded once."""

    def __init__(self) -> None:
        self._known: list[tuple[Data, str, Splits]] = []

    def task_of(self, experiment: Experiment) -> Task:
        """Return the task of an experiment."""
        device = experiment.machine.device
        known = next((splits for data, on, splits in self._known if data == experiment.data and on == device), None)
        task = prepare(experiment, splits=known)
        if known is None:
            self._known.append((experiment.data, device, task.splits))
        return task


def forecast_grid(
    base: Experiment, dimensions: dict[str, list[Any]], loaded: LoadedData, report: ReportProgress = silent
) -> Forecast:
    """Predict every combination of the dimensions of a grid."""
    predict = partial(predict_task, report=report)
    found = []
    for experiment in experiments_of(base, dimensions, repeats=1):
        task = loaded.task_of(experiment)
        predicted = predict(task) if experiment.division.folds is None else predict_fold_times(task, predict)
        found.append((experiment, predicted))
    return Forecast(found)
