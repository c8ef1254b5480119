from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import FACTS, made_profile

from tenfold.errors import MachineError
from tenfold.mixing.round import exact_round, group_round, shifted_round
from tenfold.prediction.measurements import Averaging, Costs, Evaluating, Step, write_trace
from tenfold.prediction.profile import Profile

AGES = (("old", 90), ("recent", 30))
"""Minutes ago."""


class TestFiles:
    def test_a_profile_comes_back_as_it_was(self, tmp_path: Path) -> None:
        profile = made_profile()
        assert Profile.load(profile.save(tmp_path / "deep" / "profile.toml")) == profile

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("made = 'now'", "machine: is missing"),
            ("made = 'now'\nmachine = {}\nspeed = 3", "unknown"),
            ("made = 'now'\n[machine]\n[[steps]]\nwork = 'mlp'\nbatch_size = 0", r"steps\[1\].batch_size = 0"),
            ("made = [", "cannot be read"),
        ],
    )
    def test_what_is_no_profile_is_named(self, tmp_path: Path, text: str, sentence: str) -> None:
        path = tmp_path / "bad.toml"
        path.write_text(text)
        with pytest.raises(MachineError, match=sentence) as raised:
            Profile.load(path)
        assert "tenfold calibrate" in str(raised.value)

    def test_a_missing_profile_says_how_to_make_one(self, tmp_path: Path) -> None:
        with pytest.raises(MachineError, match=r"tenfold calibrate"):
            Profile.load(tmp_path / "none.toml")

    def test_a_place_that_cannot_be_written_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(MachineError, match="cannot be written"):
            made_profile().save(tmp_path / "file" / "profile.toml")

    def test_steps_of_another_hour_are_not_mixed_with_new_ones(self) -> None:
        at = {name: (datetime.now(UTC) - timedelta(minutes=ago)).isoformat("T", "seconds") for name, ago in AGES}
        steps = [
            Step(work=work, batch_size=64, threads=1, workers=workers, mean=1e-3, at=at[when])
            for work, workers, when in (("mlp", 1, "old"), ("mlp", 2, "recent"), ("other", 1, "old"))
        ]
        before = Profile(made="", machine=FACTS).add(steps=steps)
        new = steps[1].model_copy(update={"workers": 4})
        after = before.without_steps_of_another_hour("mlp").add(steps=[new])
        assert [(step.work, step.workers) for step in after.steps] == [
            ("mlp", 2),
            ("mlp", 4),
            ("other", 1),
        ]


class TestCheck:
    @pytest.mark.parametrize(
        ("part", "field", "value", "words"),
        [
            ("cpu", "model", "Other 9000", "processor"),
            ("cpu", "budget", 2, "budget"),
            ("cpu", "logical", 64, "number of cpus"),
            ("torch", "version", "9.0", "its torch is 2.10, here it is 9.0"),
        ],
    )
    def test_another_machine_is_noticed(self, part: str, field: str, value: Any, words: str) -> None:
        metadata = FACTS | {part: FACTS[part] | {field: value}}
        sentence = made_profile().check(metadata)
        assert sentence is not None
        assert words in sentence
        assert "tenfold calibrate" in sentence


class TestStepTime:
    def test_a_measured_setting_is_given_back(self) -> None:
        assert made_profile().step_time("mlp", 64, 1, 1).mean == pytest.approx(1e-3)

    def test_other_batch_sizes_lie_on_the_line(self) -> None:
        # 16 samples take 0.4 ms and 64 take 1 ms: 0.2 ms and 12.5 us a sample
        step = made_profile().step_time("mlp", 32, 1, 1)
        assert step.mean == pytest.approx(0.6e-3, rel=1e-3)
        assert step.fixed == pytest.approx(0.2e-3, rel=1e-3)

    def test_other_numbers_of_workers_lie_between(self) -> None:
        profile = made_profile()
        one, two, four = (profile.step_time("mlp", 64, 1, workers).mean for workers in (1, 2, 4))
        assert one < two < four
        assert two == pytest.approx(np.sqrt(one * four))
        assert profile.step_time("mlp", 64, 1, 100).mean == pytest.approx(four)

    def test_unknown_work_says_what_to_do(self) -> None:
        with pytest.raises(MachineError, match="calibrate"):
            made_profile().step_time("cnn", 64, 1, 1)

    def test_threads_that_were_not_measured_follow_those_that_were(self) -> None:
        known = {"work": "mlp", "batch_size": 64, "workers": 1}
        profile = Profile(
            made="", machine=FACTS, steps=[Step(**known, threads=n, mean=1e-3 + 8e-3 / n) for n in (1, 2, 4)]
        )
        means = [profile.step_time("mlp", 64, threads, 1).mean for threads in (1, 2, 3, 4, 8, 1024)]
        assert means[:2] == pytest.approx([9e-3, 5e-3])
        assert 3e-3 < means[2] < 5e-3
        assert means[3:] == pytest.approx([3e-3, 2e-3, 1e-3 + 8e-3 / 1024])

    def test_more_threads_cannot_be_predicted_where_more_are_not_faster(self) -> None:
        known = {"work": "mlp", "batch_size": 64, "workers": 1}
        slower = Profile(made="", machine=FACTS, steps=[Step(**known, threads=n, mean=1e-3 * n) for n in (1, 2)])
        with pytest.raises(MachineError, match="predicted"):
            slower.step_time("mlp", 64, 8, 1)
        assert slower.step_time("mlp", 64, 2, 1).mean == pytest.approx(2e-3)

    @given(st.lists(st.lists(st.floats(1e-4, 1e-2), min_size=2, max_size=2), min_size=1, max_size=9))
    def test_a_written_trace_is_read_to_a_thousandth(self, rows: list[list[float]]) -> None:
        burst = np.array(rows)
        fields = {"work": "w", "batch_size": 1, "threads": 1, "workers": 2}
        read = Step(**fields, mean=burst.mean(), trace=write_trace(burst)).step_times()
        assert read is not None
        assert np.abs(read - burst).max() <= 1.001e-3 * burst.mean()


class TestRoundPrice:
    def test_a_measured_round_is_given_back(self) -> None:
        cost = made_profile().round_cost()
        assert cost(exact_round(4), 1_000_000) == pytest.approx(2e-3)
        assert cost(shifted_round(4, (-1, 1)), 1_000_000) == pytest.approx(3e-3)

    def test_larger_weights_go_by_the_line(self) -> None:
        # 1 ms for 0 bytes, 1 ns a byte more
        assert made_profile().round_cost()(exact_round(4), 9_000_000) == pytest.approx(10e-3, rel=1e-3)

    def test_numbers_between_lie_between(self) -> None:
        cost = made_profile().round_cost()
        two, three, four = (float(cost(exact_round(n), 1_000_000)) for n in (2, 3, 4))
        assert two < three < four

    def test_pairs_among_many_are_not_a_mean_of_all(self) -> None:
        pairs = group_round(((0, 1), (2, 3)))
        assert made_profile().round_cost()(pairs, 1_000_000) == pytest.approx(1.5e-3)

    def test_without_rounds_it_says_what_to_do(self) -> None:
        with pytest.raises(MachineError, match=r"tenfold calibrate"):
            made_profile().model_copy(update={"averaging": ()}).round_cost()

    def test_the_fit_is_kept_with_its_residual(self) -> None:
        entry = Averaging.of({1000: 2e-3, 1_000_000: 3e-3}, transport="gloo", workers=2, kind="group", fan=2)
        assert entry.latency == pytest.approx(2e-3, rel=0.01)
        assert entry.bandwidth == pytest.approx(1e9, rel=0.01)
        assert entry.residual < 1e-3


class TestAdd:
    def test_a_new_measurement_takes_the_place_of_the_old(self) -> None:
        profile = made_profile()
        again = Step(work="mlp", batch_size=64, threads=1, workers=1, mean=5e-3)
        changed = profile.add(steps=[again])
        assert len(changed.steps) == len(profile.steps)
        assert changed.step_time("mlp", 64, 1, 1).mean == pytest.approx(5e-3)

    def test_steps_remember_the_load_and_those_of_a_busy_machine_can_be_left_out(self) -> None:
        known = {"work": "mlp", "batch_size": 64, "workers": 1, "mean": 1e-3}
        steps = [Step(**known, threads=1, load=0.5), Step(**known, threads=2, load=3.0)]
        profile = Profile(made="", machine=FACTS, steps=steps)
        assert profile.load_of("mlp") == 3.0
        assert profile.without_busy_steps("cnn") is profile
        assert [step.threads for step in profile.without_busy_steps("mlp").steps] == [1]


class TestOtherCosts:
    def test_what_grows_with_bytes_grows_beyond_what_was_measured(self) -> None:
        profile = made_profile().model_copy(update={"costs": Costs(start={1: 0.1}, sharing=1e-9, save={1000: 0.01})})
        assert profile.start_seconds(1, data=10**9) == pytest.approx(1.1)
        assert profile.save_seconds(5000) == pytest.approx(0.05)

    def test_the_workers_share_an_evaluation(self) -> None:
        profile = made_profile()  # 100 samples take one worker 10 ms
        assert profile.evaluation_seconds("mlp", 200, 1, 1) == pytest.approx(0.02)
        assert profile.evaluation_seconds("mlp", 200, 1, 4) == pytest.approx(0.005)
        four = Evaluating(work="mlp", threads=1, workers=4, samples=400, seconds=0.02)
        assert profile.add(evaluating=[four]).evaluation_seconds("mlp", 200, 1, 4) == pytest.approx(0.01)
        assert profile.add(evaluating=[four]).evaluation_seconds("mlp", 200, 1, 8) == pytest.approx(0.005)
        faster = Evaluating(work="mlp", threads=2, workers=1, samples=100, seconds=0.006)
        assert profile.add(evaluating=[faster]).evaluation_seconds("mlp", 200, 2, 1) == pytest.approx(0.012)
        assert profile.add(evaluating=[faster]).evaluation_seconds("mlp", 200, 1, 1) == pytest.approx(0.02)
        assert profile.evaluation_seconds("cnn", 200, 1, 4) == 0


def test_a_profile_of_an_earlier_version_is_to_be_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(
        'made = "2025"\n[machine]\n[[steps]]\nwork = "mlp"\nbatch_size = 64\nthreads = 1\ntogether = 1\nmean = 0.1\n'
    )
    with pytest.raises(MachineError, match=r"tenfold calibrate"):
        Profile.load(path)
