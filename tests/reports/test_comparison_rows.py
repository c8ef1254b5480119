"""What is compared with what, and which numbers are doubtful."""

import pytest
from made_runs import FACTS, make_run, make_virtual_run

from tenfold.reports.comparison import Comparison
from tenfold.reports.comparison_rows import is_clearly_faster, make_rows, pareto_front
from tenfold.reports.pages.run_pages import render_report
from tenfold.reports.related_runs import find_baseline
from tenfold.reports.summary import describe_workers

SHORT = {"steps_per_epoch": 20, "epochs": 1}
IDLE, BUSY = ({"before": load, "after": 0.5, "cores": 2} for load in (0.5, 3.0))


@pytest.fixture
def timed(tmp_path):
    def make(seconds, *, load=IDLE, metrics=None, threads=1, **fields):
        result = {"seconds": seconds, "load": load, "threads": threads}
        if metrics is not None:
            result["metrics"] = metrics
        return make_run(tmp_path, result=result, **SHORT, **fields)

    return make


class TestDoubts:
    def test_a_speedup_that_the_cores_explain_is_trusted(self, timed):
        rows = make_rows([timed(8.0), timed(3.6, workers=2)])
        assert [row.doubts for row in rows] == [(), ()]

    def test_a_speedup_far_above_the_cores_is_marked(self, timed):
        comparison = Comparison([timed(8.0), timed(0.4, workers=2)])
        assert [row.doubts for row in comparison.rows] == [(), ("speedup",)]
        assert [row[0] for row in comparison.text_table().rows] == ["1 × 1  ", "2 × 1 !"]
        assert any(line.startswith("! the speedup exceeds 115% of the cores") for line in comparison.lines())
        assert comparison.records()[1]["doubts"] == "speedup"

    def test_a_time_on_a_busy_machine_is_marked(self, timed):
        comparison = Comparison([timed(8.0, load=BUSY), timed(4.0, workers=2)])
        assert [row.doubts for row in comparison.rows] == [("load",), ()]
        assert any("other programs were running" in line for line in comparison.lines())


class TestBaseline:
    def test_a_launched_run_is_compared_with_a_serial_one(self, timed):
        rows = make_rows([timed(8.0), timed(4.0, workers=2, distribute="scatter", on_failure="continue")])
        assert [row.speedup for row in rows] == [1.0, 2.0]

    def test_a_batch_size_that_follows_from_the_workers_is_no_difference(self, timed):
        runs = [timed(8.0), timed(1.0, workers=16), timed(0.9, workers=16, batch_size=24)]
        rows = make_rows(runs)
        assert [row.speedup for row in rows] == [1.0, 8.0, None]
        assert [row.label for row in make_rows(runs[:2])] == ["1 worker", "16 workers"]

    def test_what_is_learned_must_be_the_same(self, timed):
        rows = make_rows([timed(8.0), timed(4.0, workers=2, batch_size=32)])
        assert rows[1].speedup is None

    def test_runs_that_stopped_at_different_epochs_are_compared_by_sample(self, tmp_path):
        def run(seconds, epochs, **fields):
            result = {"seconds": seconds, "samples": epochs * 60_000, "stopped_early": epochs < 4}
            return make_run(tmp_path, steps_per_epoch=20, epochs=4, patience=1, result=result, **fields)

        stopped = Comparison([run(8.0, 4), run(1.0, 1, workers=2)])
        assert [row.speedup for row in stopped.rows] == pytest.approx([1.0, 2.0])
        assert stopped.rows[1].improvement == pytest.approx(50)
        assert any("compare times per sample" in line for line in stopped.lines())
        assert find_baseline(stopped.runs[1]).speedup == pytest.approx(2.0)
        assert "over one worker, run 1, per sample" in render_report(stopped.runs[1:])
        whole = Comparison([run(8.0, 4, lr=0.5), run(4.0, 4, workers=2, lr=0.5)])
        assert [row.speedup for row in whole.rows] == [1.0, 2.0]
        assert not any("per sample" in line for line in whole.lines())

    def test_efficiency_on_a_virtual_cluster_is_per_node(self, tmp_path):
        runs = [make_virtual_run(tmp_path, **SHORT), make_virtual_run(tmp_path, workers=16, **SHORT)]
        rows = make_rows(runs)
        assert [row.cores for row in rows] == [1, 16]
        assert rows[1].efficiency == pytest.approx(rows[1].speedup / 16)

    def test_virtual_workers_are_listed_with_the_threads_that_were_predicted(self, tmp_path):
        here = {"threads": 1}  # which computed the steps
        runs = [make_virtual_run(tmp_path, threads=threads, result=here, **SHORT) for threads in (1, 8)]
        assert [row.threads for row in make_rows(runs)] == [1, 8]
        assert "1 virtual worker with 8 threads" in describe_workers(runs[1])

    def test_a_single_run_finds_its_baseline_in_the_store(self, timed):
        alone, other = timed(8.0), timed(8.0, lr=0.5)
        two = timed(4.0, workers=2)
        found = find_baseline(two)
        assert found is not None
        assert (found.run.id, found.speedup, found.doubts) == (alone.id, 2.0, ())
        assert find_baseline(alone) is None
        assert find_baseline(timed(4.0, workers=2, lr=0.25)) is None
        assert f"over one worker, run {alone.id}" in render_report([two])
        assert "doubtful: other programs" in render_report([timed(4.0, workers=2, load=BUSY)])
        assert other.id != alone.id


class TestMetrics:
    def test_less_of_an_error_is_better(self, timed):
        rows = make_rows([timed(8.0, metrics={"mae": 2.0}), timed(4.0, lr=0.5, metrics={"mae": 1.0})])
        assert [row.metrics["mae"].mean for row in pareto_front(rows)] == [1.0]


def test_batches_of_all_data_are_the_same_setting_with_any_number_of_workers(timed):
    asked = {"optimizer": "sandblaster-lbfgs", "metadata": FACTS | {"asked": {"batch_size": None}}}
    alone, two = (timed(8.0 / n, workers=n, batch_size=6000 // n, **asked) for n in (1, 2))
    assert make_rows([alone, two])[1].speedup == 2.0
    assert find_baseline(two).run.id == alone.id


class TestNoise:
    def test_less_than_a_millisecond_is_no_difference(self, timed):
        rows = make_rows([timed(0.0100, metrics={"accuracy": 0.8}), timed(0.0105, lr=1, metrics={"accuracy": 0.9})])
        assert not is_clearly_faster(rows[0], rows[1])
        assert pareto_front(rows) == [rows[1]]
        assert "1 more within the noise" in render_report([run for row in rows for run in row.runs])

    def test_repeats_tell_how_large_the_noise_is(self, timed):
        rows = make_rows([timed(s, lr=lr, seed=seed) for seed, lr, s in ((0, 1, 8), (1, 1, 10), (0, 2, 9), (1, 2, 11))])
        assert not is_clearly_faster(rows[0], rows[1])
        rows = make_rows(
            [timed(s, lr=lr, seed=seed) for seed, lr, s in ((0, 1, 2), (1, 1, 2.1), (0, 2, 9), (1, 2, 11))]
        )
        assert is_clearly_faster(rows[0], rows[1])
