import pytest
from made_runs import make_run

from tenfold.reports import run_plots as timeline_plots
from tenfold.runs import Span


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [make_run(folder, steps_per_epoch=100), make_run(folder, steps_per_epoch=100, lr=0.1, workers=2)]


def test_there_is_a_lane_for_each_worker(runs):
    chart = timeline_plots.timeline_plot(runs[1], until=10.0)
    assert (chart.clock, chart.rows, chart.until) == ("measured", ["worker 0", "worker 1"], 10.0)
    assert {len(column) for column in chart.spans.values()} == {2 * 4 * timeline_plots.MOST_STEPS}


def test_an_empty_run_draws_nothing(tmp_path):
    assert timeline_plots.timeline_plot(make_run(tmp_path, empty=True)) is None


def test_the_timeline_keeps_single_steps_and_what_came_between_them():
    start, first = Span(at=0, kind="start", seconds=1), Span(at=1, kind="compute", seconds=1)
    between, second = Span(at=2, kind="evaluate", seconds=1), Span(at=3, kind="compute", seconds=1)
    merged, late = Span(at=4, kind="compute", seconds=20, count=20), Span(at=30, kind="evaluate", seconds=1)
    assert timeline_plots.first_steps([start, first, between, second, merged, late]) == [first, second, between]
    assert timeline_plots.first_steps([start, late]) == []
