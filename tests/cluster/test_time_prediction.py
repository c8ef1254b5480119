from dataclasses import replace

import numpy as np
import pytest
from looped import looped

from tenfold.cluster import Cluster, Hardware, StepTime, Workload, predict_time, run_round_clock
from tenfold.cluster.workload import divide_among_the_free
from tenfold.errors import ExperimentError
from tenfold.mixing import STRATEGIES

NOISY = StepTime(mean=0.01, between_workers=0.05, between_steps=0.1)


def plan(name="allreduce", workers=4, steps=100, nbytes=250_000, options=None, **fields):
    strategy = STRATEGIES[name](**(options or {}))
    return Workload(workers=workers, steps_per_epoch=steps, strategy=strategy, nbytes=nbytes, **fields)


def on(workers=4, link="10gbe", step_time=NOISY, **fields):
    return Cluster.of(workers, link).hardware(workers, step_time, **fields)


def share(prediction, kind):
    """Return how much of all workers' training time something takes."""
    training = sum(prediction.times[item].sum() for item in ("compute", "wait", "communicate"))
    return prediction.times[kind].sum() / training


class TestSeconds:
    def test_steady_hardware_gives_the_hand_computed_time(self):
        hardware = Hardware(
            step_time=StepTime(mean=2.0), round_cost=lambda *_: 0.5, start=3.0, evaluation=1.0, save=0.25
        )
        got = predict_time(plan(steps=10, epochs=2, sync_every=5, marks=(5,)), hardware)
        assert got.seconds == pytest.approx(2 * 10 * 2.0 + 4 * 0.5)
        assert got.interval == pytest.approx((got.seconds, got.seconds))
        assert got.total == pytest.approx(3.0 + got.seconds + 2 * (0.5 + 1.0 + 0.25))
        assert got.marks == pytest.approx({5: 10.5, 10: 21.0, 20: 42.0})
        assert share(got, "wait") == 0
        assert share(got, "communicate") == pytest.approx(2 / 42)

    def test_small_batches_take_less_time_down_to_the_fixed_part(self):
        hardware = Hardware(step_time=StepTime(mean=2.0, fixed=0.5), round_cost=lambda *_: 0.0)
        sizes = [[64, 64], [32, 0]]
        got = predict_time(plan("none", workers=2, steps=2, batch_sizes=sizes), hardware)
        assert got.times["compute"].tolist() == pytest.approx([2.0 + 0.5 + 0.75, 2.0])

    @looped("name", list(STRATEGIES))
    @looped("workers", [1, 2, 5])
    def test_every_strategy_can_be_predicted(self, name, workers):
        got = predict_time(plan(name, workers, steps=30), on(workers), repeats=3)
        low, high = got.interval
        assert 0.2 < low <= got.seconds <= high < 2
        assert all(len(seconds) == workers for seconds in got.times.values())
        assert got.seconds >= max(sum(got.times[kind] for kind in ("compute", "wait", "communicate"))) - 1e-9
        assert got.calibrated
        assert (got.bytes_per_worker == 0).all() == (workers == 1 and not STRATEGIES[name].has_center) or name == "none"

    def test_more_workers_need_more_time_for_communication_in_the_end(self):
        def talk(workers):
            return share(predict_time(plan(workers=workers, steps=60), on(workers)), "communicate")

        assert talk(2) < talk(16) < talk(256)
        assert talk(256) > 0.5

    def test_the_same_seed_predicts_the_same(self):
        one, again, other = (predict_time(plan(), on(), seed=seed) for seed in (0, 0, 1))
        assert one.seconds == again.seconds != other.seconds
        assert one.interval == again.interval


class TestBytes:
    @looped("name", ["allreduce", "butterfly", "ring", "hierarchical"])
    def test_they_are_what_the_rounds_say(self, name):
        what = plan(name, 6, steps=10, nbytes=1200)
        rounds = [what.strategy.round(r, 6).bytes_per_worker(1200) for r in range(10)]
        assert predict_time(what, on(6)).bytes_per_worker.tolist() == np.sum(rounds, axis=0).tolist()

    def test_compression_makes_them_fewer(self):
        whole, half = (predict_time(plan(compression=share), on()).bytes_per_worker for share in (1.0, 0.5))
        np.testing.assert_allclose(half, whole / 2)

    def test_an_algorithm_can_be_chosen_for_exact_rounds(self):
        ring, server = (
            predict_time(plan(workers=8, options={"algorithm": algorithm}), Cluster.of(8).hardware(8, NOISY))
            for algorithm in ("ring", "server")
        )
        assert ring.seconds < server.seconds
        assert ring.bytes_per_worker[0] > server.bytes_per_worker[0]


class TestInterval:
    @pytest.mark.parametrize("name", ["none", "allreduce", "butterfly"])
    def test_eight_of_ten_runs_fall_into_it_over_many_seeds(self, name):
        what, hardware = plan(name, steps=20, sync_every=2), on()
        runs = run_round_clock(what, hardware, seed=99, repeats=300).seconds
        intervals = [predict_time(what, hardware, seed=seed, repeats=8).interval for seed in range(60)]
        inside = [np.mean((low < runs) & (runs < high)) for low, high in intervals]
        assert np.mean(inside) == pytest.approx(0.8, abs=0.04)

    def test_an_error_of_the_model_widens_it(self):
        hardware = on(step_time=StepTime(mean=0.01), model_error=0.05)
        got = predict_time(plan(), hardware)
        assert got.interval == pytest.approx((got.seconds / 1.05**1.2816, got.seconds * 1.05**1.2816), rel=1e-3)
        wider = predict_time(plan(), on(model_error=0.05)).interval
        assert wider[1] - wider[0] > got.interval[1] - got.interval[0]

    def test_no_repeats_are_refused(self):
        with pytest.raises(ExperimentError, match="repeats"):
            predict_time(plan(), on(), repeats=0)


class TestReasons:
    def test_an_interval_of_the_calibrations_error_is_not_said_to_have_no_width(self):
        prediction = predict_time(plan(), replace(on(step_time=StepTime(mean=1.0)), model_error=0.05))
        assert prediction.interval[0] < prediction.seconds < prediction.interval[1]
        assert not any("no width" in reason for reason in prediction.reasons)

    def test_where_everything_matters_nothing_is_said(self):
        assert predict_time(plan("butterfly", 16, nbytes=10**7), on(16)).reasons == ()


def test_step_times_must_fit_the_plan():
    with pytest.raises(ExperimentError, match="workload"):
        predict_time(plan(), Hardware(step_time=[NOISY] * 3, round_cost=lambda *_: 0.0))


def test_portions_go_to_whoever_is_free():
    even, uneven = np.ones((1, 1, 4)), np.array([[[1.0, 1.0, 1.0, 4.0]]])
    assert divide_among_the_free(even, 16).max() == 1
    assert divide_among_the_free(uneven, 16).max() == pytest.approx(1.25)  # 5 + 5 + 5 + 1 portions of a quarter second
    assert divide_among_the_free(uneven, 4).max() == 2
