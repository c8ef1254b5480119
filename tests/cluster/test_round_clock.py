"""The recurrences against a simulation that looks at one worker, one step and one partner at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from largest import expected_largest

from tenfold.cluster import Cluster, Hardware, StepTime, Workload, run_round_clock
from tenfold.cluster import round_clock as clock_module
from tenfold.cluster.round_clock import StrategyRounds
from tenfold.mixing import STRATEGIES, AsynchronousStrategy, is_round_due
from tenfold.mixing.strategies import Gossip

SYNCHRONOUS = [name for name in STRATEGIES if not issubclass(STRATEGIES[name], AsynchronousStrategy)]
law = settings(deadline=None, derandomize=True, max_examples=60)


def one_price(_round, nbytes):
    return 0.25 * nbytes


def price_each(round_, nbytes):
    """Return another cost for each worker; who rests pays nothing."""
    return np.array([nbytes * (rank % 3 + 1) / 7 if len(read) > 1 else 0 for rank, read in enumerate(round_.sources)])


def naive(plan, means, cost, start, evaluation, save):
    """Return each worker's training time, waiting and communication, the marks, and the end."""
    n, full = plan.workers, max(map(max, plan.batch_sizes))
    now, not_training, waited, communicated = [start] * n, [start] * n, [0.0] * n, [0.0] * n
    marks, r = {}, 0
    for step in range(1, plan.steps + 1):
        sizes = plan.batch_sizes[(step - 1) % plan.steps_per_epoch]
        now = [at + mean * size / (full or 1) for at, mean, size in zip(now, means, sizes, strict=True)]
        round_ = None
        if plan.average == "gradients" or is_round_due(step, plan.sync_every, plan.local_after):
            round_ = plan.strategy.round(r, n)
            r += 1
        if round_ is not None:
            begin = [max([now[i], *(now[j] for j in round_.partners(i))]) for i in range(n)]
            costs = np.broadcast_to(0.0 if round_.is_idle else cost(round_, plan.compressed_bytes), n).tolist()
            waited = [total + late - at for total, late, at in zip(waited, begin, now, strict=True)]
            communicated = [total + own for total, own in zip(communicated, costs, strict=True)]
            now = [late + own for late, own in zip(begin, costs, strict=True)]
        if step in plan.marks or step % plan.steps_per_epoch == 0:
            marks[step] = max(at - off for at, off in zip(now, not_training, strict=True))
        if step % plan.steps_per_epoch == 0:
            final = plan.strategy.final(n)
            end = max(now) + (0.0 if final.is_idle else np.max(cost(final, plan.compressed_bytes))) + evaluation + save
            not_training = [off + end - at for off, at in zip(not_training, now, strict=True)]
            now = [end] * n
    if not plan.ends_equal:
        final = plan.strategy.final(n)
        last = 0.0 if final.is_idle else float(np.max(cost(final, plan.compressed_bytes)))
        communicated, now = [total + last for total in communicated], [at + last for at in now]
    return [at - off for at, off in zip(now, not_training, strict=True)], waited, communicated, marks, now[0]


@st.composite
def plans(draw):
    n, steps, epochs = draw(st.integers(1, 9)), draw(st.integers(1, 40)), draw(st.integers(1, 2))
    row = st.lists(st.integers(0, 8), min_size=n, max_size=n)
    sizes = draw(st.lists(row, min_size=steps, max_size=steps))
    sizes[0][0] = 8
    return Workload(
        workers=n,
        steps_per_epoch=steps,
        epochs=epochs,
        strategy=STRATEGIES[draw(st.sampled_from(SYNCHRONOUS))](),
        nbytes=draw(st.integers(0, 5)),
        sync_every=draw(st.integers(1, 7)),
        local_after=draw(st.integers(0, 5)),
        average=draw(st.sampled_from(["weights", "gradients"])),
        batch_sizes=sizes,
        marks=tuple(draw(st.lists(st.integers(1, steps * epochs), max_size=3))),
    )


class TestAgainstTheNaiveWay:
    @law
    @given(plan=plans(), cost=st.sampled_from([one_price, price_each]), chunk=st.sampled_from([1, 40, 1 << 18]))
    def test_every_time_is_the_same(self, plan, cost, chunk):
        means = [1.0 + rank / 4 for rank in range(plan.workers)]
        hardware = Hardware(
            step_time=[StepTime(mean=mean) for mean in means], round_cost=cost, start=2.0, evaluation=0.5, save=0.125
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clock_module, "CHUNK", chunk)
            timing = run_round_clock(plan, hardware, repeats=2)
        trained, waited, communicated, marks, end = naive(plan, means, cost, 2.0, 0.5, 0.125)
        close = {"rtol": 1e-9, "atol": 1e-9}
        np.testing.assert_allclose(timing.seconds, [max(trained)] * 2, **close)
        np.testing.assert_allclose(timing.total, [end] * 2, **close)
        np.testing.assert_allclose(timing.times["wait"], waited, **close)
        np.testing.assert_allclose(timing.times["communicate"], communicated, **close)
        assert timing.marks.keys() == marks.keys()
        for step, seconds in marks.items():
            np.testing.assert_allclose(timing.marks[step], [seconds] * 2, **close)

    @law
    @given(plan=plans())
    def test_every_moment_of_a_worker_is_given_to_one_kind(self, plan):
        hardware = Hardware(step_time=StepTime(mean=1.0), round_cost=price_each, start=2.0, evaluation=0.5, save=0.125)
        timing = run_round_clock(plan, hardware)
        np.testing.assert_allclose(sum(timing.times.values()), timing.total[0], rtol=1e-9)
        if plan.steps <= 25:
            lanes = np.zeros((plan.workers, 2))
            for span in timing.spans:
                at, index = span.start, span.kind == "communicate"
                assert at >= 0
                lanes[span.worker, int(index)] += span.seconds
            np.testing.assert_allclose(lanes[:, 1], timing.times["communicate"], atol=1e-9)

    @pytest.mark.parametrize("name", SYNCHRONOUS)
    def test_when_rounds_are_due_is_what_training_says(self, name):
        plan = Workload(
            workers=4, steps_per_epoch=50, strategy=STRATEGIES[name](), nbytes=1, sync_every=7, local_after=10
        )
        assert plan.is_due(1, 50).tolist() == [is_round_due(step, 7, 10) for step in range(1, 51)]
        assert plan.rounds == sum(plan.is_due(1, 50))


class TestStragglers:
    @pytest.mark.parametrize("noise", ["log-normal", "shifted-exponential"])
    @pytest.mark.parametrize("h", [1, 4])
    def test_a_round_waits_for_the_latest_as_the_closed_form_says(self, noise, h):
        plan = Workload(workers=64, steps_per_epoch=4000, strategy=STRATEGIES["allreduce"](), nbytes=0, sync_every=h)
        step_time = StepTime(mean=2.0, between_steps=0.3, noise=noise)
        timing = run_round_clock(plan, Hardware(step_time=step_time, round_cost=lambda *_: 0.5), repeats=4)
        each = (timing.seconds.mean() - 0.5 * plan.rounds) / plan.steps
        if h == 1:
            assert each == pytest.approx(2.0 * expected_largest(64, noise, 0.3), rel=0.01)
        else:
            assert 2.0 < each < 2.0 * expected_largest(64, noise, 0.3)

    def test_fewer_rounds_gain_what_the_closed_form_says(self):
        def seconds(h):
            plan = Workload(workers=8, steps_per_epoch=240, strategy=STRATEGIES["allreduce"](), nbytes=1, sync_every=h)
            return run_round_clock(plan, Hardware(step_time=StepTime(mean=2.0), round_cost=lambda *_: 3.0)).seconds[0]

        for h in (2, 5, 60):
            assert seconds(1) / seconds(h) == pytest.approx((1 + 1.5) / (1 + 1.5 / h))

    def test_neighbors_wait_for_less_than_everybody_does(self):
        def waits(name):
            plan = Workload(workers=32, steps_per_epoch=300, strategy=STRATEGIES[name](), nbytes=0)
            hardware = Hardware(step_time=StepTime(mean=1.0, between_steps=0.2), round_cost=lambda *_: 0.0)
            return run_round_clock(plan, hardware, repeats=3).times["wait"].mean()

        assert 0 == waits("none") < waits("butterfly") < waits("allreduce")
        assert waits("ring") < waits("allreduce")


class TestDrawing:
    def plan(self, name="butterfly", workers=8):
        return Workload(workers=workers, steps_per_epoch=200, strategy=STRATEGIES[name](), nbytes=1000, sync_every=3)

    def hardware(self, workers=8):
        return Cluster.of(workers).hardware(
            workers, StepTime(mean=0.01, between_workers=0.1, between_steps=0.1), start=1.0
        )

    def test_the_same_seed_gives_the_same_times_and_another_others(self):
        one, again, other = (
            run_round_clock(self.plan(), self.hardware(), seed=seed, repeats=3).seconds.tolist() for seed in (1, 1, 2)
        )
        assert one == again != other
        assert len(set(one)) == 3

    def test_single_spans_are_few_and_in_order(self):
        timing = run_round_clock(self.plan(workers=100), self.hardware(100))
        assert {span.worker for span in timing.spans} == set(range(64))
        lane = [span for span in timing.spans if span.worker == 5]
        assert [span.kind for span in lane[:2]] == ["start", "compute"]
        assert sum(span.kind == "compute" for span in lane) == 25
        ends = [span.start + span.seconds for span in lane]
        np.testing.assert_allclose([span.start for span in lane[1:]], ends[:-1])

    @pytest.mark.parametrize("n", [3, 8, 9])
    def test_pairs_as_arrays_meet_as_their_rounds_do(self, n):
        fast = StrategyRounds(Gossip(seed=3), n, [1000], Cluster.of(n).round_cost(n))
        slow = StrategyRounds(Gossip(seed=3), n, [1000], lambda *given: Cluster.of(n).round_cost(n)(*given))
        now = np.random.default_rng(0).random((2, n))
        for r in range(20):
            np.testing.assert_array_equal(fast[r].wait(now), slow[r].wait(now))
            np.testing.assert_allclose(np.broadcast_to(fast[r].cost, n), np.broadcast_to(slow[r].cost, n))
