"""`tenfold.forecast`: predict the time of every combination of settings."""

from collections.abc import Iterable, Iterator
from typing import Unpack

from tenfold.api import compare as grid
from tenfold.api.simulate import on_cluster
from tenfold.cluster.prediction import Prediction
from tenfold.crossval.predict_folds import predict_folds
from tenfold.data import Splits
from tenfold.engines import require_no_launcher
from tenfold.engines.prepare import prepare
from tenfold.experiment import Data, Experiment
from tenfold.experiment.experiment import fields_by_name
from tenfold.experiment.field_types import Grid
from tenfold.launch.detect import detect_world
from tenfold.prediction.calibration import ReportProgress
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
    base, dimensions = grid.parts(on_cluster(experiment), dict(settings))
    tasks = _prepared(grid.experiments_of(base, dimensions, repeats=1))

    report = reporter(progress)

    def predict(task: Task) -> Prediction:
        return predict_task(task, report)

    return Forecast(
        [
            (task.experiment, predict(task) if task.experiment.division.folds is None else predict_folds(task, predict))
            for task in tasks
        ]
    )


def _prepared(experiments: Iterable[Experiment]) -> Iterator[Task]:
    """Yield the tasks of experiments; data that several have in common are loaded once."""
    loaded: list[tuple[Data, str, Splits]] = []
    for one in experiments:
        device = one.machine.device
        known = next((splits for data, where, splits in loaded if data == one.data and where == device), None)
        task = prepare(one, splits=known)
        if known is None:
            loaded.append((one.data, device, task.splits))
        yield task
