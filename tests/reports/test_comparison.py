"""What is said of settings side by side, against rows computed by hand."""

import csv
import io
import json
import math
import re

import pytest
from made_runs import FACTS, make_run, read_run

from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.reports.charts import PlotStyles
from tenfold.reports.comparison import Comparison
from tenfold.reports.comparison_rows import make_rows, pareto_front
from tenfold.reports.display import as_plain_text
from tenfold.reports.pages.comparison_page import comparison_tables
from tenfold.reports.plots import scaling_curves
from tenfold.reports.tables import heat_maps
from tenfold.runs import Recorder, Store
from tenfold.runs.events import Metric

OTHER_TIMES = {"evaluate": 1.0, "start": 2.0, "save": 0.5}
CORES = {**FACTS, "machine": {**FACTS["machine"], "cpu": {"budget": 4}}}


@pytest.fixture
def measured(tmp_path):
    """Record runs with these results, without events."""

    def make(seconds, accuracy=0.9, *, times=None, status="finished", sent=0, metrics=None, **fields):
        result = {
            "seconds": seconds,
            "metrics": {"loss": 0.5, "accuracy": accuracy} if metrics is None else metrics,
            "threads": 1,
            "times": times or {"compute": 0.6 * seconds, "wait": 0.3 * seconds, "communicate": 0.1 * seconds},
            "bytes_moved": sent,
        }
        known = result if status == "finished" else {}
        return make_run(tmp_path, empty=True, kind="compare", metadata=CORES, status=status, result=known, **fields)

    return make


@pytest.fixture
def scaled(measured):
    """One, two and eight workers on four cores, two repeats each: 10, 4 and 20 s."""
    one = [measured(9.0), measured(11.0, seed=1)]
    two = [measured(3.0, 0.8, workers=2, sent=1024), measured(5.0, 0.9, workers=2, sent=1024, seed=1)]
    eight = [measured(20.0, 0.7, workers=8), measured(20.0, 0.7, workers=8, seed=1)]
    return Comparison([one[0], two[0], eight[0], one[1], two[1], eight[1]])


@pytest.fixture
def validated(tmp_path):
    """Two learning rates with two repeats; the first is better on the test part, the second on validation."""
    store = Store(tmp_path / "validated")

    def make(lr, seed, validation, test):
        number = store.create(Experiment(lr=lr, seed=seed, validation_fraction=0.2), kind="compare", metadata=CORES)
        recorder = Recorder(store, number)
        for epoch, value in enumerate((0.1, validation)):
            for part, name in (("validation", "accuracy"), ("train", "epoch_accuracy")):
                recorder(Metric(at=0.0, name=name, value=value, part=part, step=epoch, epoch=epoch, seconds=1.0))
        times = {"data": 0.5, "compute": 1.5, "wait": 0.5, "communicate": 0.5} | OTHER_TIMES
        result = {"seconds": 3.0, "part": "test", "metrics": {"accuracy": test}, "times": times}
        recorder.close(result=result, status="finished")
        return read_run(store, number)

    return Comparison(
        [make(*item) for item in ((0.1, 0, 0.5, 0.91), (0.2, 0, 0.8, 0.71), (0.1, 1, 0.6, 0.93), (0.2, 1, 0.6, 0.73))]
    )


def shown(renderable, width=120):
    return as_plain_text(renderable, width)


class TestRows:
    def test_repeats_make_one_row_with_mean_and_deviation(self, scaled):
        one, two, eight = scaled.rows
        assert [row.seconds.mean for row in scaled.rows] == [10.0, 4.0, 20.0]
        assert two.seconds.deviation == pytest.approx(math.sqrt(2))
        assert two.accuracy.mean == pytest.approx(0.85)
        assert [[run.id for run in row.runs] for row in (one, two, eight)] == [[1, 2], [3, 4], [5, 6]]

    def test_speedup_efficiency_improvement_and_gain(self, scaled):
        assert [row.speedup for row in scaled.rows] == [1.0, 2.5, 0.5]
        assert [row.improvement for row in scaled.rows] == [0.0, 60.0, -100.0]
        assert [row.gain for row in scaled.rows] == [200.0, 500.0, 100.0]
        assert [row.cores for row in scaled.rows] == [1, 2, 4]
        assert [row.efficiency for row in scaled.rows] == [1.0, 1.25, 0.125]

    def test_the_spread_of_both_times_makes_that_of_the_speedup(self, scaled):
        one, two = scaled.rows[:2]
        relative = math.hypot(math.sqrt(2) / 10, math.sqrt(2) / 4)
        assert two.speedup_deviation == pytest.approx(2.5 * relative)
        assert one.speedup_deviation is None

    def test_shares_of_the_training_time(self, scaled):
        assert scaled.rows[1].shares == pytest.approx({"data": 0.0, "compute": 0.6, "wait": 0.3, "communicate": 0.1})
        assert scaled.rows[1].bytes_per_worker == 1024

    def test_one_worker_is_the_baseline_of_every_strategy_but_not_of_another_rate(self, measured):
        runs = [measured(8.0), measured(4.0, workers=2, strategy="ring"), measured(2.0, workers=2, lr=0.5)]
        assert [row.speedup for row in make_rows(runs)] == [1.0, 2.0, None]

    def test_what_one_worker_cannot_do_makes_no_setting(self, measured):
        rows = make_rows([measured(8.0), measured(4.0, workers=2, strategy="ring", sync_every=4)])
        assert [row.settings for row in rows] == [{"workers": 1}, {"workers": 2}]
        assert [row.label for row in rows] == ["1 worker", "2 workers"]

    def test_runs_that_did_not_finish_have_a_row_without_numbers(self, measured):
        rows = make_rows([measured(8.0), measured(0.0, status="failed", workers=2)])
        assert (rows[1].seconds.mean, rows[1].speedup, rows[1].gain, rows[1].shares) == (None, None, None, {})
        assert rows[0].gain == 100.0

    def test_numbers_that_are_none_are_left_out(self, measured):
        row = make_rows([measured(1.0, math.nan), measured(1.0, 0.5, seed=1)])[0]
        assert row.accuracy.values == (0.5,)


class TestTable:
    def test_columns_and_cells(self, scaled):
        made = scaled.text_table()
        names, rows = made.columns, made.rows
        assert names[:2] == ["workers × threads", "training time, s"]
        assert "strategy" not in names
        assert rows[1] == ["2 × 1 !", "4.00 ± 1.41", "2.50", "125", "60.0", "500", "85.00 ± 7.07", "1 KiB", "60/30/10"]

    def test_without_classes_the_loss_and_with_own_metrics_these(self, measured):
        alone = Comparison([measured(1.0, metrics={"loss": 0.25}), measured(2.0, metrics={"loss": 0.5}, lr=1)])
        assert (alone.text_table().columns[-1], alone.text_table().rows[0][-1]) == ("test loss", "0.2500")
        own = Comparison([measured(1.0, metrics={"loss": 0.25, "mae": 3.0}), measured(2.0, metrics={}, lr=1)])
        assert (own.text_table().columns[-1], [row[-1] for row in own.text_table().rows]) == (
            "test mae",
            ["3.0000", "–"],
        )


class TestOutputs:
    @pytest.fixture
    def usual(self, measured):
        """The widest usual case: three digits of time and deviation, long strategies, repeats."""
        runs = [measured(123.4 + seed, 0.98 + seed / 100, seed=seed) for seed in (0, 1)]
        for workers in (2, 4):
            for strategy in ("hopping-ring", "allreduce"):
                for every in (1, 16):
                    fields = {"workers": workers, "strategy": strategy, "sync_every": every, "sent": 5e6}
                    runs += [measured(50.0 + seed * workers, 0.97 + seed / 200, seed=seed, **fields) for seed in (0, 1)]
        return Comparison(runs)

    @pytest.mark.parametrize("width", [100, 120])
    def test_no_cell_breaks_and_none_is_missing(self, usual, width):
        text = shown(usual, width)
        assert max(map(len, text.splitlines())) <= width
        assert "hidden" not in text
        lines = [line.split() for line in text.splitlines()]
        for row in usual.text_table().rows:
            assert " ".join(row).split() in lines

    def test_print_is_plain_text(self, usual, monkeypatch):
        monkeypatch.setenv("COLUMNS", "120")
        assert "\x1b" not in str(usual)
        assert str(usual).splitlines()[0].split()[:2] == ["workers", "strategy"]
        assert "measured" in str(usual)
        assert repr(usual) == "<Comparison of 9 settings in 18 runs>"

    def test_html_for_notebooks_is_escaped(self, measured):
        runs = [measured(1.0, model="<b>:x"), measured(2.0, model="<i>:x")]
        text = Comparison(runs)._repr_html_()
        assert "&lt;b&gt;:x" in text
        assert "<b>" not in text
        assert text.count("<tr>") == 3

    def test_csv(self, scaled):
        rows = list(csv.DictReader(io.StringIO(scaled.to_csv())))
        assert [row["workers"] for row in rows] == ["1", "2", "8"]
        assert [float(row["speedup"]) for row in rows] == [1.0, 2.5, 0.5]
        assert rows[1]["runs"] == "3 4"
        assert float(rows[1]["seconds_deviation"]) == pytest.approx(math.sqrt(2))

    def test_json(self, scaled):
        read = json.loads(Comparison(scaled.runs, {"x": "broken"}).to_json())
        assert read["failed"] == {"x": "broken"}
        assert [row["improvement"] for row in read["rows"]] == [0.0, 60.0, -100.0]


class TestSelection:
    def test_the_best_are_beaten_by_none(self, measured):
        points = [(1.0, 0.5), (2.0, 0.9), (3.0, 0.8), (4.0, 0.95), (2.0, 0.7)]
        rows = make_rows([measured(*point, lr=at + 1) for at, point in enumerate(points)])
        assert [row.settings["lr"] for row in pareto_front(rows)] == [1, 2, 4]


def test_one_worker_stands_beside_every_value_of_a_field_that_has_no_effect_on_it(measured):
    one = measured(8.0)
    two = [measured(seconds, workers=2, average="weights", sync_every=every) for every, seconds in ((1, 5.0), (8, 4.0))]
    time, _ = heat_maps(Comparison([one, *two]).rows)
    assert time.columns == ["", "1 worker", "2 workers"]
    assert time.rows == [("sync every 1", "8.00", "5.00"), ("sync every 8", "8.00", "4.00")]


def test_columns_can_be_chosen_by_part_and_by_time(validated):
    names = ["train_accuracy", "validation_accuracy", "test_accuracy", "seconds_without_averaging"]
    names += ["seconds", "seconds_with_evaluation", "seconds_in_all", "start_seconds", "gain"]
    table = validated.with_columns(*names)
    made = table.text_table()
    headings, rows = made.columns, made.rows
    assert headings[2:] == [
        *("train accuracy %", "validation accuracy %", "test accuracy %", "time without averaging, s"),
        *("training time, s", "time with evaluation, s", "time in all, s", "startup, s", "gain %"),
    ]
    times = ["2.00 ± 0.00", "3.00 ± 0.00", "4.00 ± 0.00", "6.50 ± 0.00", "2.00 ± 0.00", "100"]
    assert rows[0][2:] == ["55.00 ± 7.07", "55.00 ± 7.07", "92.00 ± 1.41", *times]
    record = json.loads(table.to_json())["rows"][0]
    assert (record["validation_accuracy"], record["seconds_in_all"]) == pytest.approx((0.55, 6.5))
    assert "time in all: startup, training, evaluation and saving" in table.lines()
    assert not any("c/w/c" in line for line in table.lines())
    assert "no validation loss: the runs have no validation part" in validated.with_columns("validation_loss").lines()
    with pytest.raises(ExperimentError, match="seconds_without_averaging"):
        validated.with_columns("acc")


def test_the_best_on_validation_is_selected_and_alone_shows_the_test_part(validated, tmp_path):
    chosen = validated.select()
    assert validated.selected is None
    assert chosen.selected.settings == {"lr": 0.2}
    made = chosen.text_table()
    headings, rows = made.columns, made.rows
    parts = [headings.index(f"{part} accuracy %") for part in ("validation", "test")]
    assert [[row[at] for at in parts] for row in rows] == [["55.00 ± 7.07", "–"], ["70.00 ± 14.14", "72.00 ± 1.41"]]
    records = json.loads(chosen.to_json())["rows"]
    assert [(record["selected"], record["test_accuracy"]) for record in records] == [
        (False, None),
        (True, pytest.approx(0.72)),
    ]
    assert "accuracy" not in records[0]
    said = "selected: lr 0.2, the best on the validation part (accuracy 70.00%); accuracy 72.00% on the test part"
    assert said in chosen.lines()
    page = chosen.report(tmp_path / "page.html").read_text()
    assert said in page
    assert not {"92.00%", "91.00%", "93.00%", "0.91", "0.93"} & set(re.findall(r"[\d.]+%?", page))
    assert chosen.with_columns("test_accuracy").text_table().rows[0][-1] == "–"


def test_without_a_validation_part_nothing_is_selected(scaled):
    with pytest.raises(ExperimentError, match="set validation_fraction"):
        scaled.select()


def test_the_shortest_training_says_that_it_is_doubtful(measured):
    rows = [measured(20.0), measured(1.0, workers=2)]  # 20 times as fast with two workers
    about = next(about for name, _, about in comparison_tables(Comparison(rows))["headline"] if "shortest" in name)
    assert "doubtful" in about


def test_a_curve_over_workers_has_the_color_of_no_number_of_workers(measured):
    rows = Comparison([measured(10.0), measured(6.0, workers=2)]).rows
    styles = PlotStyles(rows)
    assert all(styles.style(row).color for row in rows)
    assert [style.color for _, style, _ in scaling_curves(rows, styles)] == [""]


def test_the_highest_speedup_on_the_page_is_that_of_a_setting_as_accurate_as_one_worker(measured):
    comparison = Comparison([measured(10.0), measured(4.0, 0.5, workers=2), measured(5.0, 0.899, workers=4)])
    [(name, value, note)] = [line for line in comparison_tables(comparison)["headline"] if "speedup" in line[0]]
    assert (name, value) == ("highest speedup, measured", "2.00")
    assert "89.90%" in note
    assert "90.00%" in note
