"""Predicted times of models that are divided, against seconds computed by hand and a few real steps."""

from typing import Any

import numpy as np
import pytest

from tenfold.cluster.cluster import HERE, Cluster
from tenfold.cluster.event_clock import StageTime
from tenfold.cluster.hardware import Hardware, StepTime
from tenfold.cluster.time_prediction import TimePrediction
from tenfold.engines.prepare import prepare
from tenfold.experiment import Experiment
from tenfold.mixing.round import exact_round
from tenfold.prediction import divided_models
from tenfold.prediction.divided_models import PartTimes, SideBySide, measure_here, measure_parts, predict_divided
from tenfold.prediction.task_prediction import workload_of
from tenfold.workers.task import Resolved, Task

BATCH, HIDDEN, CLASSES, FLOAT = 32, 48, 10, 4
STEPS = 6
LAYERS: dict[str, Any] = {"divide": "layers", "micro_batches": 4, "stages": ("0", "3")}
NEURONS: dict[str, Any] = {"divide": "neurons"}


def task_of(**fields: Any) -> Task:
    base: dict[str, Any] = {"model": "mlp", "hidden": [HIDDEN], "data": "digits", "limit": STEPS * BATCH, "epochs": 1}
    base |= {"workers": 2, "batch_size": BATCH, "threads": 1, "oversubscribe": True, "optimizer": "sgd"}
    return prepare(Resolved.of(Experiment(**base | fields)))


def predict(task: Task, parts: PartTimes, cluster: Any = HERE, side: SideBySide | None = None) -> TimePrediction:
    workload = workload_of(divided_models.undivided_task(task))
    hardware = Hardware(step_time=StepTime(mean=1.0), round_cost=lambda _round, _nbytes: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divided_models, "measure_parts", lambda _: parts)
        patch.setattr(divided_models, "measure_here", lambda _: side)
        return predict_divided(task, workload, hardware, cluster, lambda _: None)


def test_stages_are_timed_with_the_activations_between_them() -> None:
    parts = measure_parts(task_of(**LAYERS))
    assert len(parts.stages) == 2
    assert all(min(stage.forward, stage.backward, stage.update) > 0 for stage in parts.stages)
    assert parts.nbytes == (BATCH // 4 * HIDDEN * FLOAT,)
    assert not parts.collectives


def test_a_share_of_the_neurons_is_timed_with_what_it_gathers_and_sums() -> None:
    parts = measure_parts(task_of(**NEURONS))
    [worker] = parts.stages
    assert worker.update > 0
    outputs = [("gather", BATCH * neurons * FLOAT) for neurons in (HIDDEN, CLASSES)]
    assert sorted(parts.collectives) == [*sorted(outputs), ("reduce", BATCH * HIDDEN * FLOAT)]


@pytest.mark.parametrize("division", [LAYERS, NEURONS], ids=["layers", "neurons"])
def test_real_workers_are_timed_side_by_side(division: dict[str, Any]) -> None:
    side = measure_here(task_of(**division))
    assert len(side.busy) == 2
    assert 0 < min(side.busy) <= max(side.busy) < 10 * side.whole
    assert side.spread >= 0


def test_a_pipeline_here_takes_micro_batches_and_bubble_at_the_speed_of_side_by_side() -> None:
    alone = StageTime(1e-3, 2e-3)
    side = SideBySide(busy=np.array([24e-3, 24e-3]), whole=1.0, spread=0.0)  # twice as long as 4 x 3 ms alone
    predicted = predict(task_of(**LAYERS), PartTimes((alone, alone), (1,)), side=side)
    assert predicted.seconds == pytest.approx(STEPS * (4 + 1) * 6e-3, rel=1e-2)
    assert predicted.times["compute"] == pytest.approx([STEPS * 24e-3] * 2)
    assert predicted.times["wait"] == pytest.approx([STEPS * 6e-3] * 2, rel=0.1)
    assert {span.worker for span in predicted.spans} == {0, 1}


def test_shares_of_neurons_here_take_what_their_steps_took_side_by_side() -> None:
    side = SideBySide(busy=np.array([3e-3, 2e-3]), whole=5e-3, spread=0.0)
    parts = PartTimes((StageTime(0.0, 0.0, 1e-3),), collectives=(("gather", 1000), ("reduce", 500)))
    predicted = predict(task_of(**NEURONS), parts, side=side)
    assert predicted.seconds == pytest.approx(STEPS * 5e-3)
    assert predicted.times["compute"] == pytest.approx([STEPS * 3e-3, STEPS * 2e-3])
    assert predicted.bytes_per_worker == pytest.approx([STEPS * (500 + 500)] * 2)


def test_shares_of_neurons_on_a_cluster_pay_for_their_collective_operations() -> None:
    cluster = Cluster(groups=[{"count": 2, "link": "1gbe", "step_seconds": 2e-3}])
    parts = PartTimes((StageTime(0.0, 0.0, 1e-3),), collectives=(("gather", 10**6), ("reduce", 10**6)))
    predicted = predict(task_of(**NEURONS), parts, cluster)
    sum_of_all = float(np.max(cluster.round_cost(2)(exact_round(2), 10**6)))
    assert predicted.seconds == pytest.approx(STEPS * (2e-3 + 1.5 * sum_of_all))
    assert predicted.times["communicate"] == pytest.approx([STEPS * 1.5 * sum_of_all] * 2)
