import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import make_run, read_run
from svg_texts import texts

from tenfold.experiment import Experiment
from tenfold.report import summary
from tenfold.report.plots import run_plots, timeline_plots
from tenfold.report.plots.styles import PlotStyles, single_series
from tenfold.report.rows import make_rows
from tenfold.runs import Metric, Recorder, Span, Store

NAMES = ["plain", "_hidden", "$x_1$ \\alpha", "<b>&\"'</b>", "日本語"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [make_run(folder, steps_per_epoch=100), make_run(folder, steps_per_epoch=100, lr=0.1, workers=2)]


def series(runs):
    rows = make_rows(runs)
    return [PlotStyles(rows).series(row) for row in rows]


def bars(runs):
    return [(row.label, row.times) for row in make_rows(runs)]


@pytest.mark.parametrize("over", ["steps", "seconds"])
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_curves_are_labelled_with_what_differs_and_units(runs, metric, over):
    found = texts(run_plots.learning_curve(series(runs), metric, over))
    assert {"steps": "step", "seconds": "training time (s, measured)"}[over] in found
    assert {"1 worker, lr unset", "2 workers, lr 0.1"} <= set(found)
    assert ("accuracy (%)" if metric == "accuracy" else "loss") in found


def test_one_run_names_its_parts(runs):
    assert {"training", "test"} <= set(texts(run_plots.learning_curve([single_series(runs[0])], "loss", "steps")))


def test_times_are_said_to_be_measured(runs):
    assert "time (s, measured)" in texts(run_plots.time_plot(bars(runs), "measured"))
    assert any("measured" in text for text in texts(timeline_plots.timeline_plot(runs[1])))
    assert {"worker 0", "worker 1"} <= set(texts(timeline_plots.timeline_plot(runs[1])))


def test_an_svg_takes_colour_and_font_from_the_page_and_fetches_nothing(runs):
    svg = run_plots.learning_curve(series(runs), "loss", "steps")
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "DejaVu" not in svg
    assert "<metadata" not in svg
    assert "<style" not in svg
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]


def test_ids_are_unique_over_all_plots_of_a_page(runs):
    drawn = [
        run_plots.learning_curve(series(runs), name, over)
        for name in run_plots.curve_metrics(runs)
        for over in run_plots.OVER
    ]
    drawn += [run_plots.time_plot(bars(runs), "measured"), *(timeline_plots.timeline_plot(run) for run in runs)]
    ids = re.findall(r'\bid="([^"]*)"', "".join(drawn))
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(|href=")#([^")]*)', "".join(drawn)))
    assert used <= set(ids)


@pytest.mark.parametrize("name", NAMES)
def test_any_title_can_be_drawn(tmp_path, name):
    many = {"lr": 0.1, "workers": 2, "epochs": 2, "momentum": 0.5}
    pair = [make_run(tmp_path, steps_per_epoch=40, name=name), make_run(tmp_path, steps_per_epoch=40, name="b", **many)]
    assert name in [text.strip() for text in texts(run_plots.learning_curve(series(pair), "loss", "steps"))]
    assert name in [text.strip() for text in texts(run_plots.time_plot(bars(pair), "measured"))]


def test_repeats_are_drawn_as_their_mean_as_far_as_all_have_come(tmp_path):
    store = Store(tmp_path)
    for seed, values in enumerate([(4.0, 2.0), (2.0,)]):
        record = Recorder(store, store.create(Experiment(seed=seed), kind="train", facts={}))
        for step, value in enumerate(values):
            record(Metric(at=0, name="loss", value=value, part="test", step=step, epoch=0, seconds=step + seed))
        record.close(result={}, status="finished")
    runs = [read_run(store, 1), read_run(store, 2)]
    assert run_plots._points(runs, "loss", "steps") == {"test": [(0.0, 3.0)]}
    assert run_plots._points(runs, "loss", "seconds") == {"test": [(0.5, 3.0)]}


def test_many_settings_show_no_training_curves(tmp_path):
    few = [make_run(tmp_path, steps_per_epoch=40, epochs=1, lr=lr) for lr in (0.1, 0.2, 0.3)]
    many = [*few, make_run(tmp_path, steps_per_epoch=40, epochs=1, lr=0.4)]
    lines = [run_plots.learning_curve(series(runs), "loss", "steps").count("stroke-width: 0.9") for runs in (few, many)]
    assert lines == [3, 0]


def test_timelines_can_share_a_scale(runs):
    own, longer = timeline_plots.timeline_plot(runs[1]), timeline_plots.timeline_plot(runs[1], until=10.0)
    assert "10000" in texts(longer)
    assert "10000" not in texts(own)


def test_an_empty_run_draws_nothing(tmp_path):
    run = make_run(tmp_path, empty=True)
    assert run_plots.learning_curve([single_series(run)], "loss", "steps") == ""
    assert run_plots.time_plot([("", summary.times_by_kind(run))], run.clock) == ""
    assert timeline_plots.timeline_plot(run) == ""


def test_a_loss_that_is_no_number_is_left_out(tmp_path):
    store = Store(tmp_path)
    record = Recorder(store, number := store.create(Experiment(), kind="train", facts={}))
    for step, value in enumerate([1.0, float("nan"), float("inf"), 0.5]):
        record(Metric(at=0, name="loss", value=value, part="train", step=step, epoch=0, seconds=step))
    record.close(result={}, status="failed")
    assert "nan" not in run_plots.learning_curve([single_series(read_run(store, number))], "loss", "steps").lower()


def test_own_metrics_come_after_loss_and_accuracy(tmp_path):
    store = Store(tmp_path)
    record = Recorder(store, number := store.create(Experiment(), kind="train", facts={}))
    for name in ("f1", "accuracy", "loss"):
        record(Metric(at=0, name=name, value=0.5, part="test", step=1, epoch=0, seconds=1))
    record.close(result={}, status="finished")
    assert run_plots.curve_metrics([read_run(store, number)]) == ["loss", "accuracy", "f1"]


def test_the_timeline_keeps_single_steps_and_what_came_between_them():
    start, first = Span(at=0, kind="start", seconds=1), Span(at=1, kind="compute", seconds=1)
    between, second = Span(at=2, kind="evaluate", seconds=1), Span(at=3, kind="compute", seconds=1)
    merged, late = Span(at=4, kind="compute", seconds=20, count=20), Span(at=30, kind="evaluate", seconds=1)
    assert timeline_plots.first_steps([start, first, between, second, merged, late]) == [first, second, between]
    assert timeline_plots.first_steps([start, late]) == []


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_ends_extremes_and_order(values, most):
    points = [(float(at), value) for at, value in enumerate(values)]
    kept = run_plots.thin_points(points, most)
    assert len(kept) <= max(most, 4)
    assert kept == sorted(set(kept))
    assert {points[0], points[-1]} <= set(kept) <= set(points)
    assert max(values) in [y for _, y in kept]
    assert min(values) in [y for _, y in kept]
