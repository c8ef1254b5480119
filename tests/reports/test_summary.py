"""Law 8: a predicted second and a measured one are never shown without saying which is which."""

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import epoch_events, make_run, make_virtual_run, started
from rich.console import Console

from tenfold.experiment import Experiment
from tenfold.reports import exports as export
from tenfold.reports import plots, run_tables, summary
from tenfold.reports.charts import PlotStyles
from tenfold.reports.comparison import Comparison
from tenfold.reports.comparison_rows import make_rows
from tenfold.reports.display import as_plain_text
from tenfold.reports.formatting import duration, interval
from tenfold.reports.pages import run_pages as report
from tenfold.reports.progress import RunProgress

SHORT = {"steps_per_epoch": 40, "epochs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def real(folder):
    return make_run(folder, **SHORT, workers=2)


@pytest.fixture(scope="module")
def virtual(folder):
    return make_virtual_run(folder, **SHORT, workers=2)


@pytest.fixture(scope="module")
def uncalibrated(folder):
    return make_virtual_run(folder, **SHORT, workers=4, calibrated=False)


@pytest.fixture(scope="module")
def mixed(folder, real, virtual, uncalibrated):
    return Comparison([make_run(folder, **SHORT), real, make_virtual_run(folder, **SHORT), virtual, uncalibrated])


@pytest.fixture(scope="module")
def pages(real, virtual):
    return [report.render_report([run]) for run in (real, virtual)]


def shown(renderable, width=140):
    return as_plain_text(renderable, width)


def visible(page):
    return re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)


class TestWords:
    def test_a_time_comes_with_its_clock(self, real, virtual, uncalibrated):
        assert summary.training_time(real) == "144 ms measured"
        assert summary.training_time(virtual) == "144 ms predicted [137-153]"
        assert summary.training_time(uncalibrated) == "144 ms predicted [137-153], uncalibrated"

    def test_no_time_has_no_clock(self, folder):
        assert summary.training_time(make_run(folder, empty=True)) == "–"
        assert summary.training_time(make_virtual_run(folder, empty=True)) == "–"

    def test_both_are_named(self, real, virtual):
        assert summary.clock_names([]) == summary.clock_names([real]) == "measured"
        assert summary.clock_names([virtual]) == "predicted"
        assert summary.clock_names([virtual, real]) == "measured and predicted"

    @given(st.tuples(*[st.floats(1e-7, 1e5)] * 3).map(sorted))
    def test_an_interval_holds_both_bounds(self, bounds):
        low, middle, high = bounds
        said = interval(low, high, middle)
        assert duration(low).split(" ")[0] in said
        assert duration(high).split(" ")[0] in said


class TestTerminal:
    def test_a_prediction_from_measurements_under_load_says_so(self, folder, virtual):
        busy = make_virtual_run(folder, **SHORT, workers=2, result={"calibration_load": 3.0})
        for run, unreliable in ((busy, True), (virtual, False)):
            assert ("unreliable" in shown(run_tables.show_tables(run))) is unreliable

    def test_a_virtual_run_is_predicted_all_over(self, uncalibrated):
        text = shown(run_tables.show_tables(uncalibrated))
        for expected in (
            "ms predicted [137-153], uncalibrated",
            "training, predicted",
            "time, predicted",
            "saving 20.0 ms, predicted",
            "The clock is uncalibrated",
            "Two workers swap",
        ):
            assert expected in text
        assert [line for line in text.splitlines() if re.search(r"(?<!not )measured", line)] == [
            line for line in text.splitlines() if "The simulation itself took 2.10 s, measured." in line
        ]

    def test_a_real_run_is_measured_all_over(self, real):
        text = shown(run_tables.show_tables(real))
        assert "predicted" not in text
        for expected in ("144 ms measured", "training, measured", "time, measured", "saving 20.0 ms, measured"):
            assert expected in text

    def test_the_list_marks_predicted_runs(self, real, virtual):
        assert "predicted" not in shown(run_tables.RunsTable([real]))
        text = shown(run_tables.RunsTable([real, virtual]))
        assert text.count("144 ms predicted") == 1
        assert text.count("144 ms") == 2
        assert "training: measured, unless marked as predicted" in text

    def test_a_virtual_run_that_has_no_time_yet_shows_none(self, folder):
        running = make_run(folder, empty=True, status="running", engine="virtual")
        assert "– predicted" not in shown(run_tables.RunsTable([running]))

    def test_progress_says_which(self):
        for fields, told in (
            ({}, "17,768 samples/s  3.38 s measured"),
            ({"engine": "virtual"}, "17,768 samples/s predicted  3.38 s predicted"),
        ):
            experiment = Experiment(epochs=1, **fields)
            console = Console(file=io.StringIO(), width=100)
            with RunProgress(experiment, console=console) as progress:
                for event in (started(experiment, 938), *epoch_events(experiment, 0)):
                    progress.listen(event)
            assert console.file.getvalue().endswith(f"{told}\n")


class TestComparisons:
    def test_the_clock_is_a_column_where_anything_is_predicted(self, mixed, real, virtual):
        assert "clock" not in Comparison([real]).text_table().columns
        for comparison in (Comparison([virtual]), mixed):
            assert "clock" in comparison.text_table().columns
        at = mixed.text_table().columns.index("clock")
        assert [row[at] for row in mixed.text_table().rows] == [
            *["measured"] * 2,
            *["predicted"] * 2,
            "predicted, uncalibrated",
        ]

    def test_intervals_stand_beside_predicted_times(self, mixed):
        times = [row[mixed.text_table().columns.index("training time, ms")] for row in mixed.text_table().rows]
        assert times == ["144", "144", *["144 [137-153]"] * 3]

    def test_predicted_times_are_held_against_predicted_ones(self, folder, real, virtual):
        assert make_rows([make_run(folder, **SHORT), virtual])[1].speedup is None
        assert [row.speedup for row in make_rows([make_virtual_run(folder, **SHORT), virtual, real])] == [
            1.0,
            1.0,
            None,
        ]

    def test_a_run_and_its_prediction_are_no_repeats(self, folder, real, virtual):
        rows = make_rows([real, virtual])
        assert [row.label for row in rows] == ["lenet5-mnist, real", "lenet5-mnist, simulated"]
        told = {"clock": "predicted", "interval": [1.0, 2.0]}
        same = make_run(folder, **SHORT, workers=2, result=told)
        assert [row.clock for row in make_rows([real, same])] == ["measured", "predicted"]
        twice = [make(folder, **SHORT, workers=2, seed=1) for make in (make_run, make_virtual_run)]
        rows = make_rows([real, virtual, *twice])
        assert [(row.clock, len(row.runs)) for row in rows] == [("measured", 2), ("predicted", 2)]
        assert all(row.label.endswith(summary.HOW_RUN[row.clock]) for row in rows)

    def test_notes_say_who_told_the_times(self, mixed, real, virtual):
        assert Comparison([real]).lines()[0].startswith("times are measured, excluding")
        assert Comparison([virtual]).lines()[0].startswith("times are predicted, excluding")
        assert mixed.lines()[0].startswith("times are measured or predicted, see clock")
        assert summary.UNCALIBRATED in mixed.lines()
        assert summary.UNCALIBRATED not in Comparison([virtual]).lines()

    def test_files_say_it_in_every_row(self, mixed, real, virtual):
        rows = list(csv.DictReader(io.StringIO(mixed.to_csv())))
        assert [row["clock"] for row in rows] == ["measured"] * 2 + ["predicted"] * 3
        assert [bool(row["seconds_low"]) for row in rows] == [False] * 2 + [True] * 3
        assert [row["calibrated"] for row in json.loads(mixed.to_json())["rows"]] == [True] * 4 + [False]
        assert {row["clock"] for row in export.measurement_rows(virtual)} == {"predicted"}
        assert {row["clock"] for row in export.measurement_rows(real)} == {"measured"}


class TestPictures:
    def test_axes_name_the_clock(self, real, virtual, mixed):
        styles, rows = PlotStyles(mixed.rows), mixed.rows
        for run, clock in ((real, "measured"), (virtual, "predicted")):
            assert plots.timeline_plot(run).clock == clock
        assert plots.speedup_plot(rows, styles).title == "speedup T1/Tn (measured and predicted)"
        assert plots.tradeoff_plot(rows, styles).x_label == "training time (ms, measured and predicted)"

    def test_lines_of_different_clocks_are_different_lines(self, mixed):
        names = [name for name, _, _ in plots.scaling_curves(mixed.rows, PlotStyles(mixed.rows))]
        assert len(names) == 2
        assert names[0].endswith("measured")
        assert names[1].endswith("predicted")

    def test_settings_that_differ_only_in_the_clock_look_different(self, real, virtual):
        rows = make_rows([real, virtual])
        styles = PlotStyles(rows)
        assert styles.style(rows[0]) != styles.style(rows[1])
        assert [styles.legend_name(row).rpartition(" ")[2] for row in rows] == ["measured", "predicted"]

    def test_predictions_stand_above_what_was_measured(self, real, virtual):
        chart = plots.twin_timeline_plot(real, virtual)
        names = ("predicted", "measured")
        assert chart.rows == [f"worker {worker}, {name}" for worker in (0, 1) for name in names]
        assert chart.clock == "predicted and measured"
        assert set(chart.spans["worker"]) == {0, 1, 2, 3}
        assert min(chart.spans["at"]) == 0


class TestPages:
    def test_a_page_of_one_clock_is_true(self, pages):
        assert "Every time on this page was measured." in pages[0]
        assert "predicted" not in visible(pages[0])
        page = visible(pages[1])
        assert "Every time on this page is predicted, unless marked as measured." in page
        assert page.replace("marked as measured", "").count("measured") == page.count("took 2.10 s, measured") == 1

    def test_a_page_of_both_says_which(self, mixed):
        page = visible(report.render_report(mixed))
        assert "Every time on this page was measured, unless marked as predicted or simulated." in page
        for expected in ("144 ms predicted [137-153], uncalibrated", "144 ms measured", "training, predicted"):
            assert expected in page

    def test_a_simulation_tells_no_times_of_stages(self, pages):
        at = r'<span class="at">([^<]*)</span>'
        assert all(re.findall(at, pages[0]))
        assert set(re.findall(at, pages[1])) == {""}


def test_traces_are_named_after_the_clock(real, virtual):
    for run, pid in ((real, 0), (virtual, 1)):
        events = run.trace()["traceEvents"]
        assert {event["pid"] for event in events} == {pid}
        assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [run.clock]
        assert any(event["ph"] == "i" for event in events) == (run.clock == "measured")
