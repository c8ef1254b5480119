"""The metric against the training time, with the target."""

from pathlib import Path

import pytest
from made_runs import make_run, make_virtual_run

from tenfold.errors import ExperimentError, StoreError
from tenfold.reports.charts import PlotStyles
from tenfold.reports.comparison import Comparison
from tenfold.reports.setting_plots import target_plot


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


def test_every_setting_is_a_line_with_its_time(comparison: Comparison) -> None:
    chart = target_plot(comparison.rows, PlotStyles(comparison.rows))
    assert chart is not None
    assert [line.label for line in chart.lines] == ["1 worker: not reached", "2 workers: 4.00 s"]
    assert (chart.title, chart.target) == ("accuracy (%)", 90)
    assert chart.x_label.startswith("training time (")


def test_markers_are_hollow_where_times_were_predicted_and_only_there(tmp_path: Path) -> None:
    fields = [{"workers": 2, "strategy": strategy, "lr": lr} for strategy in ("ring", "butterfly") for lr in (0.1, 0.2)]
    makers = (make_run, make_virtual_run)
    rows = Comparison([make(tmp_path, target=0.9, **one) for make in makers for one in fields]).rows
    styles = PlotStyles(rows)
    assert {(row.clock, styles.style(row).fill == "none") for row in rows} == {("measured", False), ("predicted", True)}
    assert Comparison([run for row in rows for run in row.runs]).plot(tmp_path / "plot.svg").exists()


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_it_can_be_saved(comparison: Comparison, tmp_path: Path, ending: str) -> None:
    path = comparison.plot(tmp_path / f"target.{ending}")
    assert path.read_bytes()[:5] == {"svg": b"<?xml", "png": b"\x89PNG\r"}[ending]


def test_other_files_are_refused(comparison: Comparison, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"should end with \.svg, \.png or \.pdf"):
        comparison.plot(tmp_path / "target.doc")


def test_without_a_target_there_is_nothing_to_plot(tmp_path: Path) -> None:
    aimless = Comparison([make_run(tmp_path, workers=1)])
    assert target_plot(aimless.rows, PlotStyles(aimless.rows)) is None
    with pytest.raises(ExperimentError, match="target"):
        aimless.plot(tmp_path / "target.svg")
