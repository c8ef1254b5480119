import re

import pytest
from made_runs import make_run
from svg_texts import texts

from tenfold.report.plots import timeline_plots
from tenfold.runs import Span


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [make_run(folder, steps_per_epoch=100), make_run(folder, steps_per_epoch=100, lr=0.1, workers=2)]


def test_times_are_said_to_be_measured(runs):
    assert any("measured" in text for text in texts(timeline_plots.timeline_plot(runs[1])))
    assert {"worker 0", "worker 1"} <= set(texts(timeline_plots.timeline_plot(runs[1])))


def test_an_svg_takes_colour_and_font_from_the_page_and_fetches_nothing(runs):
    svg = timeline_plots.timeline_plot(runs[1])
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "DejaVu" not in svg
    assert "<metadata" not in svg
    assert "<style" not in svg
    assert set(re.findall(r"https?://[^\"]*", svg)) == {"http://www.w3.org/2000/svg"}


def test_timelines_can_share_a_scale(runs):
    own, longer = timeline_plots.timeline_plot(runs[1]), timeline_plots.timeline_plot(runs[1], until=10.0)
    assert "10000" in texts(longer)
    assert "10000" not in texts(own)


def test_an_empty_run_draws_nothing(tmp_path):
    assert timeline_plots.timeline_plot(make_run(tmp_path, empty=True)) == ""


def test_the_timeline_keeps_single_steps_and_what_came_between_them():
    start, first = Span(at=0, kind="start", seconds=1), Span(at=1, kind="compute", seconds=1)
    between, second = Span(at=2, kind="evaluate", seconds=1), Span(at=3, kind="compute", seconds=1)
    merged, late = Span(at=4, kind="compute", seconds=20, count=20), Span(at=30, kind="evaluate", seconds=1)
    assert timeline_plots.first_steps([start, first, between, second, merged, late]) == [first, second, between]
    assert timeline_plots.first_steps([start, late]) == []
