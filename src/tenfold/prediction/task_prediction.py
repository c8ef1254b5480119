"""What is known of an experiment's time before it runs: on which hardware, how long, and who comes first there."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.event_clock import clock_events
from tenfold.cluster.hardware import Hardware
from tenfold.cluster.prediction import Prediction
from tenfold.cluster.workload import Workload
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.values import shown
from tenfold.mixing.builders import make_strategy
from tenfold.prediction.calibration import Listen, ensure
from tenfold.prediction.clock_inputs import clockwork, forecast
from tenfold.prediction.profile import Profile
from tenfold.workers.task import Task

HERE = "here"
USUAL_LINK = "10gbe"


@dataclass(frozen=True, eq=False)
class Foresight:
    """A prediction, and what learning in its order has to know."""

    prediction: Prediction
    turns: NDArray[Any] | None
    """When each worker's step takes effect [steps, workers], for strategies without rounds."""


def foresee(task: Task, listen: Listen | None = None) -> Foresight:
    """Predict a task's times on its virtual cluster; what is not known of its steps is measured first."""
    cluster = cluster_of(task.experiment)
    by_hand = cluster is not None and all(group.step_seconds is not None for group in cluster.groups)
    profile = Profile(made="", machine={}) if by_hand else ensure(_on_cpu(task), listen=listen, cluster=cluster)
    seed = task.experiment.training.seed
    prediction = forecast(task, profile, cluster, seed=seed, marks=_told(task))
    has_rounds = not make_strategy(task.experiment.division).asynchronous
    return Foresight(prediction, None if has_rounds else _turns(*clockwork(task, profile, cluster), seed))


def cluster_of(experiment: Experiment) -> Cluster | None:
    """Return the cluster that an experiment names, if it has room; None: the processes of this machine."""
    cluster = _described(experiment)
    if cluster is not None:
        cluster.placed(experiment.division.workers)
    return cluster


def _described(experiment: Experiment) -> Cluster | None:
    given, link = experiment.machine.cluster, experiment.machine.link
    if given is not None and link is not None:
        raise ExperimentError(
            f"machine.link = {shown(link)} joins nodes that are not described, but machine.cluster describes them; "
            "give one"
        )
    if given == HERE:
        return None
    if given is None:
        return Cluster.of(experiment.division.workers, link or USUAL_LINK)
    return Cluster.load(given) if isinstance(given, str) else Cluster(**given)


def _on_cpu(task: Task) -> Task:
    """Return the task as nodes run it; a GPU here only learns for them."""
    if task.experiment.machine.device == "cpu":
        return task
    return replace(task, experiment=task.experiment.replace(device="cpu"), splits=task.splits.to("cpu"))


def _told(task: Task) -> tuple[int, ...]:
    """Return the steps after which workers log."""
    epoch = task.steps_per_epoch
    told = [step for step in range(1, epoch + 1) if task.tells_after(step)]
    return tuple(first + step for first in range(0, epoch * task.experiment.training.epochs, epoch) for step in told)


def _turns(plan: Workload, hardware: Hardware, seed: int) -> NDArray[Any]:
    turns = np.zeros((plan.steps, plan.workers))
    for event in clock_events(plan, hardware, seed=seed):
        turns[event.step - 1, event.worker] = event.time  # an exchange comes after its step
    return turns
