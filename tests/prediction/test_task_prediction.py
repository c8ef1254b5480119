"""What is known of a run's time before it runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import task_on_zeros
from threaded import Threads

from tenfold.cluster.cluster import HERE, Cluster
from tenfold.data import Tensors
from tenfold.errors import MachineError
from tenfold.mixing.round import CENTER, exact_round
from tenfold.prediction import calibration as cost_keys
from tenfold.prediction import task_prediction
from tenfold.prediction.measurements import Averaging, Costs, Evaluating, Step
from tenfold.prediction.profile import Profile
from tenfold.prediction.task_prediction import hardware_here, predict_from_profile, workload_of
from tenfold.workers.task import Task

NODES = {"groups": [{"count": 2, "step_seconds": 0.01}]}


def planned(**fields: Any) -> Task:
    return task_on_zeros(32, batch_size=4, workers=2, cluster=NODES, **fields)


def test_the_order_of_workers_without_rounds_is_predicted() -> None:
    found = task_prediction.predict_task(planned(strategy="ad-psgd"))
    assert found.exchange_times is not None
    assert found.exchange_times.shape == (8, 2)
    assert (found.exchange_times > 0).all()
    assert found.seconds >= 8 * 0.01


def test_rounds_need_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(task_prediction, "clock_events")  # the clock of single workers is not needed
    assert task_prediction.predict_task(planned(strategy="ring")).exchange_times is None


STEPS, BATCH = 8, 4


STEP, ROUND, WARMUP = 10e-3, 2e-3, 5e-3


def task_of(workers: int = 2, samples: int | None = None, **fields: Any) -> Task:
    fields = {"workers": workers, "batch_size": BATCH, "sync_every": 2} | fields
    return task_on_zeros(samples or STEPS * BATCH * workers, **fields)


def profile_for(task: Task, **step: Any) -> Profile:
    name = cost_keys.step_key(task.experiment, task.splits)
    rounds: Any = {"transport": "shared-memory", "seconds": {64: ROUND, 4096: ROUND}, "latency": ROUND}
    return Profile(
        made="",
        machine={},
        costs=Costs(adding=1e-9, start={1: 0.5}, save={64: 0.25}),
        averaging=(
            Averaging(workers=2, kind="group", fan=2, bandwidth=1e12, **rounds),
            Averaging(workers=4, kind="group", fan=4, bandwidth=1e12, **rounds),
            Averaging(workers=4, kind="neighbors", fan=3, bandwidth=1e12, **rounds),
        ),
        steps=tuple(
            Step(**({"work": name, "batch_size": BATCH, "threads": 1, "workers": n, "mean": STEP} | step))
            for n in (1, 2, 4)
        ),
    )


def test_a_prediction_remembers_the_highest_load_of_what_it_rests_on():
    task = task_of()
    profile = profile_for(task, load=0.5)
    assert predict_from_profile(task, profile).calibration_load == 0.5
    assert predict_from_profile(task, profile.with_costs(rounds_load=2.0)).calibration_load == 2.0


def test_steps_and_rounds_add_up():
    task = task_of()
    found = predict_from_profile(task, profile_for(task))
    assert found.seconds == pytest.approx(2 * STEPS * STEP + STEPS * ROUND)
    assert found.interval == pytest.approx((found.seconds, found.seconds))


def test_one_round_an_epoch_whatever_the_number_of_workers():
    for workers in (2, 4):
        task = task_of(workers=workers, samples=2 * STEPS * BATCH, sync_every="epoch")
        found = predict_from_profile(task, profile_for(task))
        assert workload_of(task).rounds == 2
        assert found.seconds == pytest.approx(2 * (task.steps_per_epoch * STEP + ROUND))


def test_an_iteration_of_lbfgs_on_always_the_same_samples_evaluates_less_often():
    seconds = []
    for steps in (1, 2):
        task = task_of(workers=1, samples=steps * BATCH, optimizer="sandblaster-lbfgs", sync_every=1)
        assert task.steps_per_epoch == steps
        seconds.append(predict_from_profile(task, profile_for(task)).seconds / steps)
    assert seconds[1] == pytest.approx(2 * STEP)
    assert seconds[0] == pytest.approx(2 * STEP * 1.25 / 2.1)


def test_one_worker_has_no_rounds():
    task = task_of(workers=1)
    assert predict_from_profile(task, profile_for(task)).seconds == pytest.approx(2 * STEPS * STEP)


def test_the_test_part_is_evaluated_once_more_after_the_last_epoch():
    task = task_of()
    test = Tensors(torch.zeros(100, 3), torch.zeros(100, 1))
    work, _ = cost_keys.work_of(task)
    profile = profile_for(task).add(evaluating=[Evaluating(work=work, threads=1, workers=2, samples=50, seconds=0.1)])
    before, found = (
        predict_from_profile(item, profile).times["evaluate"].max()
        for item in (task, replace(task, splits=replace(task.splits, test=test)))
    )
    assert found - before == pytest.approx(3 * 0.2), "two epochs"


def test_only_worker_processes_have_a_startup():
    times = [predict_from_profile(task, profile_for(task)).times for task in map(task_of, (1, 2))]
    assert [float(found["start"].max()) for found in times] == [0.0, 0.5]


def test_a_checkpoint_holds_the_state_of_the_optimizer():
    tasks = [task_of(optimizer=name) for name in ("sgd", "adam")]
    small = {2 * workload_of(tasks[0]).nbytes: 1e-3}
    sgd, adam = (
        predict_from_profile(task, profile_for(task).with_costs(save=small)).times["save"].max() for task in tasks
    )
    assert adam == pytest.approx(sgd * 3 / 2), "weights and two vectors, not one"


def test_first_steps_are_counted_once():
    task = task_of()
    plain, warmup = (predict_from_profile(task, profile_for(task, warmup=warmup)).seconds for warmup in (0.0, WARMUP))
    assert warmup - plain == pytest.approx(WARMUP)
    spans = [predict_from_profile(task, profile_for(task, warmup=warmup)).spans for warmup in (0.0, WARMUP)]
    ends = [max(span.start + span.seconds for span in told) for told in spans]
    assert ends[1] - ends[0] == pytest.approx(WARMUP)
    assert len(spans[0]) == len(spans[1])


def test_compression_and_outer_optimizer_lengthen_every_round_but_the_last_mean():
    task = task_of(compression="topk", compression_options={"fraction": 0.1}, outer="slowmo")
    profile, nbytes = profile_for(task), workload_of(task).nbytes
    names = {
        "compression topk fraction=0.1": {nbytes: 3e-3, nbytes + 64: 1.0},
        "outer slowmo": {nbytes: 1e-3},
        "compression int8": {nbytes: 1.0},
    }
    known = profile.with_costs(round_overhead=names)
    for cluster in (HERE, Cluster.of(2)):
        longer = (
            predict_from_profile(task, known, cluster).seconds - predict_from_profile(task, profile, cluster).seconds
        )
        assert longer == pytest.approx(STEPS * 4e-3)


def test_a_short_last_batch_takes_a_part_of_the_time():
    task = task_of(workers=1, samples=STEPS * BATCH + 2, epochs=1)
    assert predict_from_profile(task, profile_for(task)).seconds == pytest.approx((STEPS + 0.5) * STEP)


@pytest.mark.parametrize("strategy", ["allreduce", "ring"])
def test_rounds_amid_the_steps_of_this_work_count(strategy):
    task = task_of(workers=4, strategy=strategy)
    found = predict_from_profile(task, profile_for(task, round=1.5 * ROUND))
    rounds = STEPS + (strategy == "ring")  # which leaves replicas different, so that they are averaged at the end
    assert found.seconds == pytest.approx(2 * STEPS * STEP + rounds * 1.5 * ROUND)


def test_a_disturbed_round_is_not_believed():
    task = task_of()
    found = predict_from_profile(task, profile_for(task, round=100 * ROUND))
    assert found.seconds == pytest.approx(2 * STEPS * STEP + STEPS * 3 * ROUND)


def test_doubt_widens_the_interval():
    task = task_of()
    found = predict_from_profile(task, profile_for(task, standard_error=0.05))
    low, high = found.interval
    assert low < 0.97 * found.seconds < found.seconds < high


def test_gradients_are_copied_into_shared_memory():
    task = task_of(average="gradients")
    plan = workload_of(task)
    cost = hardware_here(task, profile_for(task), plan).round_cost
    assert cost(plan.strategy.round(0, 2), plan.nbytes) == pytest.approx(ROUND + 1e-9 * plan.nbytes)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exchange_with_a_center_in_shared_memory_takes_as_long_as_its_arithmetic(workers):
    task = task_of(workers, strategy="downpour")
    nbytes = workload_of(task).nbytes
    cost = hardware_here(task, profile_for(task), workload_of(task)).exchange_cost
    assert cost(0, CENTER, nbytes, nbytes) == pytest.approx(11e-9 * nbytes)
    found = predict_from_profile(task, profile_for(task))
    assert found.times["communicate"].max() >= STEPS * 11e-9 * nbytes


def test_compression_makes_messages_smaller_but_not_shared_memory():
    task = task_of(compression="bf16")
    assert workload_of(task).compression == 1
    assert workload_of(task, compressed=True).compression == pytest.approx(0.5)


@pytest.mark.parametrize("optimizer", ["muon", "sgd", "adam"])
def test_rounds_send_the_averaged_state_of_the_optimizer(optimizer: str) -> None:
    task = planned(strategy="ring", sync_every=2, optimizer=optimizer, momentum=0.9, optimizer_state="average")
    predicted, local = (
        task_prediction.predict_task(item)
        for item in (task, replace(task, resolved=task.resolved.replace(optimizer_state="local")))
    )
    assert predicted.bytes_per_worker.max() == Threads(task).train().coordinator.result["bytes_moved"]
    assert predicted.seconds > local.seconds


def test_averaging_the_state_of_the_optimizer_makes_rounds_here_longer() -> None:
    task = task_of(optimizer_state="average")
    [name] = cost_keys.round_extras(task.experiment)
    nbytes = workload_of(task).nbytes
    shares = {name: {nbytes: (0.5, 0.3)}}
    profile = profile_for(task).with_costs(round_overhead={name: {nbytes: 1e-3}}, round_overhead_shares=shares)
    found = predict_from_profile(task, profile)
    assert found.seconds == pytest.approx(2 * STEPS * STEP + STEPS * (ROUND + 1e-3))
    plain = predict_from_profile(task, profile_for(task))
    parts = [float((found.times[kind] - plain.times[kind]).mean()) for kind in ("compute", "wait", "communicate")]
    assert parts == pytest.approx([STEPS * 0.5e-3, STEPS * 0.2e-3, STEPS * 0.3e-3])
    on_cluster = [
        predict_from_profile(task, some, Cluster.of(2, adding=0.0)).seconds for some in (profile_for(task), profile)
    ]
    assert on_cluster[1] - on_cluster[0] == pytest.approx(STEPS * 0.5e-3), "the links say what messages cost"


def test_a_cluster_steps_as_this_machine_does_at_its_own_speed():
    task = task_of()
    slow = Cluster.of(2, link={"latency": 0.5, "bandwidth": 1e12}, speed=0.5, adding=0.0)
    found = predict_from_profile(task, profile_for(task), slow)
    assert found.seconds == pytest.approx(2 * STEPS * 2 * STEP + STEPS * 2 * 0.5, rel=1e-3), "weights, then momenta"


def test_a_group_may_have_a_profile_of_its_own(tmp_path: Path):
    task = task_of()
    path = profile_for(task, mean=3 * STEP).save(tmp_path / "theirs.toml")
    other = Cluster.of(2, link={"latency": 0.0, "bandwidth": 1e15}, profile=str(path), adding=0.0)
    assert predict_from_profile(task, profile_for(task), other).seconds == pytest.approx(2 * STEPS * 3 * STEP, rel=1e-3)


def test_hardware_by_hand_needs_no_steps():
    task = task_of()
    by_hand = Cluster.of(2, link={"latency": 0.0, "bandwidth": 1e15}, step_seconds=1.0, adding=0.0)
    found = predict_from_profile(task, profile_for(task).model_copy(update={"steps": ()}), by_hand)
    assert found.seconds == pytest.approx(2 * STEPS)


def test_steps_that_were_never_measured_are_named():
    task = task_of()
    with pytest.raises(MachineError, match="fp32"):
        predict_from_profile(task, profile_for(task).model_copy(update={"steps": ()}))


def test_workers_that_divide_the_orthogonalization_have_shorter_steps():
    task = task_of(hidden=[512, 512, 512], optimizer="muon", average="gradients")
    profile = profile_for(task)
    work = cost_keys.step_key(task.experiment, task.splits)
    known = profile.with_costs(orthogonalization={work: {BATCH: 0.4}})
    before, after = (hardware_here(task, item, workload_of(task)) for item in (profile, known))
    assert after.step_time.mean == pytest.approx(STEP * (1 - 0.4 / 2))
    everybody = exact_round(2)
    assert after.round_cost(everybody, 64) > before.round_cost(everybody, 64)
    whole = task_of(hidden=[512, 512, 512], optimizer="muon", average="gradients", on_failure="continue")
    assert hardware_here(whole, known, workload_of(whole)).step_time.mean == pytest.approx(STEP)


@pytest.mark.parametrize(("share", "left"), [(0.8, 1 - 0.8 * 3 / 4), (1.5, 1 / 4)])
def test_what_dividing_saves_is_a_share_of_the_orthogonalization_which_is_part_of_the_step(share, left):
    task = task_of(workers=4, hidden=[512, 512, 512], optimizer="muon", average="gradients")
    work = cost_keys.step_key(task.experiment, task.splits)
    profile = profile_for(task).with_costs(orthogonalization={work: {BATCH: share}})
    hardware = hardware_here(task, profile, workload_of(task))
    assert hardware.step_time.mean == pytest.approx(STEP * left)
