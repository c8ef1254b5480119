"""The same settings on cpu and on other devices, like for like."""

import csv
import io
import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from looped import looped
from made_runs import make_run, make_virtual_run

from tenfold.experiment import Experiment
from tenfold.reports import charts as palette
from tenfold.reports import plots
from tenfold.reports.charts import PlotStyles
from tenfold.reports.comparison import Comparison
from tenfold.reports.comparison_rows import Row, Spread, make_rows, with_ratios
from tenfold.reports.pages import run_pages as report
from tenfold.reports.plots import target_plot
from tenfold.runs.events import Span

NAME = "factor against cpu"


@pytest.fixture
def timed(tmp_path):
    """Record runs that took so long."""

    def make(seconds, accuracy=0.9, *, virtual=False, metrics=None, **fields):
        result = {
            "seconds": seconds,
            "metrics": metrics or {"loss": 0.5, "accuracy": accuracy},
            "times": {"compute": seconds},
        }
        result |= {"clock": "predicted", "interval": [seconds, seconds]} if virtual else {}
        return make_run(tmp_path, steps_per_epoch=1, **{"epochs": 1} | fields, result=result)

    return make


@pytest.fixture
def both(timed):
    """Two optimizers on cpu and cuda: 8 and 2 s, 9 and 1 s."""
    return Comparison(
        [
            timed(seconds, optimizer=optimizer, device=device)
            for optimizer, device, seconds in (
                ("sgd", "cpu", 8.0),
                ("sgd", "cuda", 2.0),
                ("adam", "cpu", 9.0),
                ("adam", "cuda", 1.0),
            )
        ]
    )


def factors(runs):
    return [row.factor_against_cpu for row in make_rows(runs)]


def drawn(rows):
    return plots.devices_plot(plots.choose_groups(plots.device_groups(rows)), PlotStyles(rows))


def bar_texts(chart, measure):
    return [bar.text for _, cells in chart.rows for bar in cells[measure]]


def row(seconds, device, **fields):
    experiment = Experiment(device=device, **fields)
    return Row(
        label=device,
        settings={"device": device},
        experiment=experiment,
        workers=experiment.parallel.workers,
        cores=1,
        seconds=Spread(tuple(seconds)),
        bytes_per_worker=0.0,
        times={},
    )


class TestFactor:
    def test_it_is_against_the_same_settings_on_cpu(self, both):
        assert [row.factor_against_cpu for row in both.rows] == [None, 4.0, None, 9.0]

    def test_without_a_twin_on_cpu_there_is_none(self, timed):
        assert factors([timed(8.0), timed(2.0, device="cuda", lr=0.5)]) == [None, None]
        assert factors([timed(8.0, device="cuda"), timed(2.0, device="cuda:1")]) == [None, None]
        assert factors([timed(8.0), timed(2.0, device="cuda", workers=2)]) == [None, None]

    def test_workers_mix_as_their_twins_do(self, timed):
        two = {"workers": 2, "sync_every": 4}
        runs = [timed(8.0, **two), timed(6.0, **two | {"sync_every": 1}), timed(2.0, device="cuda", **two)]
        assert factors(runs) == [None, None, 4.0]

    def test_of_several_twins_the_one_on_the_most_alike_machine_counts(self, timed):
        runs = [timed(8.0, threads=1), timed(4.0, threads=2), timed(2.0, threads=2, device="cuda")]
        assert factors(runs) == [None, None, 2.0]

    def test_a_measured_time_is_never_held_against_a_predicted_one(self, timed):
        measured, predicted = timed(8.0), timed(6.0, virtual=True)
        on_gpu = [timed(2.0, device="cuda"), timed(3.0, virtual=True, device="cuda")]
        assert factors([measured, on_gpu[1]]) == factors([predicted, on_gpu[0]]) == [None, None]
        assert factors([measured, predicted, *on_gpu]) == [None, None, 4.0, 2.0]

    def test_a_run_that_failed_has_none_and_gives_none(self, timed, tmp_path):
        failed = {"status": "failed", "epochs": 1, "steps_per_epoch": 1}
        assert factors([timed(8.0), make_run(tmp_path, **failed, device="cuda")]) == [None, None]
        assert factors([make_run(tmp_path, **failed), timed(2.0, device="cuda")]) == [None, None]

    @given(
        st.lists(st.floats(0.01, 100), min_size=2, max_size=5), st.lists(st.floats(0.01, 100), min_size=2, max_size=5)
    )
    def test_spreads_are_carried_over_as_the_speedups_are(self, cpu, gpu):
        one, other = with_ratios([row(cpu, "cpu"), row(gpu, "cuda")])
        assert (one.factor_against_cpu, one.factor_against_cpu_deviation) == (None, None)
        assert other.factor_against_cpu == pytest.approx(one.seconds.mean / other.seconds.mean)
        relative = math.hypot(*(each.deviation / each.mean for each in (one.seconds, other.seconds)))
        assert other.factor_against_cpu_deviation == pytest.approx(other.factor_against_cpu * relative)


class TestTable:
    def test_every_form_shows_it(self, both):
        shown = both.text_table()
        names, cells = shown.columns, shown.rows
        assert [line[names.index(NAME)] for line in cells] == ["–", "4.00", "–", "9.00"]
        assert "× cpu" in str(both).splitlines()[0]
        assert f"| {NAME} |" in both.to_markdown()
        assert [line["factor_against_cpu"] for line in csv.DictReader(io.StringIO(both.to_csv()))] == [
            *("", "4.0", "", "9.0")
        ]
        assert [line["factor_against_cpu"] for line in json.loads(both.to_json())["rows"]] == [None, 4.0, None, 9.0]
        assert "factor against cpu (× cpu) = Tcpu/T, with all other settings equal" in both.lines()


class TestPlot:
    def test_bars_are_named_and_tell_the_factor(self, both):
        chart = drawn(both.rows)
        assert chart.measures == ["training time (measured)", "test accuracy"]
        assert [name for name, _ in chart.series] == ["cpu", "cuda"]
        assert [(name, [bar.series for bar in cells[0]]) for name, cells in chart.rows] == [
            ("sgd", [0, 1]),
            ("adam", [0, 1]),
        ]
        assert bar_texts(chart, 0) == ["8.00 s", "2.00 s, 4.00 × cpu", "9.00 s", "1.00 s, 9.00 × cpu"]
        assert set(bar_texts(chart, 1)) == {"90.00%"}

    def test_clocks_are_kept_apart(self, tmp_path):
        common = {"steps_per_epoch": 20, "epochs": 1}
        makers = (make_run, make_virtual_run)
        rows = make_rows([make(tmp_path, **common, device=device) for make in makers for device in ("cpu", "cuda")])
        assert list(plots.device_groups(rows)) == ["measured", "predicted"]
        assert drawn(rows).measures[0] == "training time (measured and predicted)"


def test_the_page_has_the_plot_and_the_highest_factor(both, timed):
    page = report.render_report(both)
    assert "<h2>CPU and GPU</h2>" in page
    assert "highest factor against cpu, measured" in page
    assert "CPU and GPU" not in report.render_report([timed(8.0, lr=0.1), timed(2.0, lr=0.2)])


# What is left of red, green and blue light for eyes without one kind of cone (Machado et al. 2009, severity 1).
EYES = {
    "usual": np.eye(3),
    "protanopic": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopic": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopic": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


WHITE = TO_XYZ.sum(axis=1)


LIGHT_BACKGROUND, DARK_BACKGROUND = "#ffffff", "#15171a"


def light(color):
    """Return how much red, green and blue light a color is, 0 to 1."""
    shares = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """Return the contrast of two colors, 1 to 21: (L1 + 0.05) / (L2 + 0.05), L the relative luminance (WCAG 2)."""
    darker, lighter = sorted((TO_XYZ @ light(color))[1] for color in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def lab(color, eyes):
    x, y, z = TO_XYZ @ np.clip(np.array(EYES[eyes]) @ light(color), 0, 1) / WHITE
    x, y, z = (np.cbrt(item) if item > 0.008856 else 7.787 * item + 16 / 116 for item in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@looped("eyes", EYES)
def test_any_two_colors_can_be_told_apart(eyes):
    distances = [np.linalg.norm(lab(item, eyes) - lab(other, eyes)) for item, other in combinations(palette.SERIES, 2)]
    assert min(distances) >= 20


@looped("color", sorted({*palette.SERIES, *palette.KIND_COLORS.values()}))
@looped("background", [LIGHT_BACKGROUND, DARK_BACKGROUND])
def test_colors_read_on_both_backgrounds(color, background):
    assert contrast(color, background) >= 3


def test_neighboring_runs_never_look_alike():
    styles = [palette.series(at) for at in range(40)]
    assert len(set(styles)) == 40


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("runs")
    reached = {"seconds": 4.0, "seconds_to_target": 4.0}
    return Comparison(
        [
            make_run(folder, target=0.9, workers=1, result={"seconds": 8.0}),
            make_run(folder, target=0.9, workers=2, result=reached),
        ]
    )


def test_markers_are_hollow_where_times_were_predicted_and_only_there(tmp_path: Path) -> None:
    fields = [{"workers": 2, "strategy": strategy, "lr": lr} for strategy in ("ring", "butterfly") for lr in (0.1, 0.2)]
    makers = (make_run, make_virtual_run)
    rows = Comparison([make(tmp_path, target=0.9, **one) for make in makers for one in fields]).rows
    styles = PlotStyles(rows)
    assert {(row.clock, styles.style(row).fill == "none") for row in rows} == {("measured", False), ("predicted", True)}


def test_without_a_target_there_is_nothing_to_plot(tmp_path: Path) -> None:
    aimless = Comparison([make_run(tmp_path, workers=1)])
    assert target_plot(aimless.rows, PlotStyles(aimless.rows)) is None


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [make_run(folder, steps_per_epoch=100), make_run(folder, steps_per_epoch=100, lr=0.1, workers=2)]


def test_the_timeline_keeps_single_steps_and_what_came_between_them():
    start, first = Span(at=0, kind="start", seconds=1), Span(at=1, kind="compute", seconds=1)
    between, second = Span(at=2, kind="evaluate", seconds=1), Span(at=3, kind="compute", seconds=1)
    merged, late = Span(at=4, kind="compute", seconds=20, count=20), Span(at=30, kind="evaluate", seconds=1)
    assert plots.first_steps([start, first, between, second, merged, late]) == [first, second, between]
    assert plots.first_steps([start, late]) == []
