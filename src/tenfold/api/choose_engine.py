"""The engine of a run that is about to begin."""

from tenfold.cluster.prediction import Prediction
from tenfold.engines import Engine, Task, choose, validate
from tenfold.experiment import Experiment
from tenfold.launch.detect import detect_world
from tenfold.runs import Clock, Emit, Note


def engine_for(experiment: Experiment, clock: Clock, listen: Emit) -> Engine:
    """Return the engine that trains an experiment here; raise ExperimentError if none can.

    What has to be measured for the prediction of a virtual run is reported to `listen`, before the run is recorded.
    """
    world = detect_world()
    validate(experiment, world)

    def predict(task: Task) -> Prediction:
        from tenfold.prediction.task_prediction import predict_task

        return predict_task(task, lambda text: listen(Note(at=clock.now(), text=text)))

    return choose(experiment, world, predict)
