"""Cross-validations on pages and in comparisons."""

import io
import re

import pytest
from made_runs import FACTS, made_folds, make_crossval, make_run
from rich.console import Console

from tenfold.reports import plots
from tenfold.reports.comparison import Comparison
from tenfold.reports.pages.run_pages import render_report
from tenfold.reports.pages.sections import folds_section, machine_section, run_headline


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(folder):
    return make_crossval(folder, made_folds(5, failed=(2,), cores=2))


class TestPage:
    def test_a_failed_fold_is_told_with_its_reason_as_text(self, run):
        page = render_report([run])
        assert "fold 2: ValueError: &lt;b&gt;no&lt;/b&gt;" in page
        assert "1 fold failed and is not drawn" in page
        assert "<b>no" not in page

    def test_a_plain_run_has_no_folds(self, folder):
        plain = make_run(folder, steps_per_epoch=30, epochs=1)
        assert folds_section(plain, ()) is None
        assert "Folds" not in render_report([plain])

    def test_ids_are_unique(self, run):
        ids = re.findall(r'\bid="([^"]*)"', render_report([run]))
        assert len(ids) == len(set(ids))


class TestStrip:
    def test_every_part_has_its_points_mean_and_interval(self, run):
        chart = plots.fold_scores_plot(run, "accuracy")
        assert [strip.name for strip in chart.strips] == ["training", "validation", "test"]
        assert chart.unit == "%"
        for strip in chart.strips:
            assert len(strip.values) == len(strip.notes) == 4
            assert strip.low < strip.mean < strip.high
        assert chart.strips[0].notes[1].startswith("fold 3: ")
        assert "95% interval" in chart.strips[0].about


class TestLanes:
    def test_one_lane_a_core_one_span_a_fold_and_core(self, run):
        chart = plots.fold_timeline(run)
        assert chart.rows == ["core 0", "core 1"]
        assert set(chart.texts) == {f"fold {at}" for at in range(1, 6)}
        assert [name for name, _ in chart.kinds] == ["fold", "failed fold"]
        assert {text for text, kind in zip(chart.texts, chart.spans["kind"], strict=True) if kind} == {"fold 2"}
        assert chart.clock == "measured"


def test_the_time_of_a_cross_validation_says_whose_it_is(tmp_path):
    run = make_crossval(tmp_path, made_folds(4) | {"seconds": 20.0}, folds=4)
    assert any("busiest core" in note for name, _, note in run_headline(run, None) if name == "training time")


class TestCrosstable:
    @pytest.fixture
    def compared(self, tmp_path):
        def made(k, n, **fields):
            return make_crossval(tmp_path, made_folds(k) | {"seconds": 10.0 * k / n}, folds=k, workers=n, **fields)

        return made

    def test_folds_go_down_and_workers_across(self, compared):
        comparison = Comparison([compared(k, n) for n in (1, 2) for k in (2, 4)])
        time, accuracy = comparison.crosstables()
        assert time.title == "training time, s, measured"
        assert time.columns == ["", "1 worker", "2 workers"]
        assert time.rows == [("2 folds", "20.0", "10.0"), ("4 folds", "40.0", "20.0")]
        assert accuracy.title == "validation accuracy %"
        console = Console(file=io.StringIO(), width=120)
        console.print(comparison)
        for text in (console.file.getvalue(), comparison.to_markdown(), render_report(comparison)):
            assert time.title in text
        assert "| 4 folds | 40.0 | 20.0 |" in comparison.to_markdown()


LAYOUT = [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]


def pinned(folder, workers, **result):
    cpu = {**FACTS["machine"]["cpu"], "layout": LAYOUT}
    metadata = {**FACTS, "machine": {**FACTS["machine"], "cpu": cpu}, "cores": {"workers": workers, "note": ""}}
    return make_run(folder, steps_per_epoch=5, epochs=1, metadata=metadata, result=result or None)


def test_cores_show_their_workers(tmp_path):
    run = pinned(tmp_path, [[0, 4], [2]], peak_memory=[2**30, 2**29])
    section = machine_section(run)
    assert [node["name"] for node in section["nodes"]] == ["NUMA node 0", "NUMA node 1"]
    cells = [cell for node in section["nodes"] for core in node["cores"] for cell in core]
    assert {cell["cpu"]: cell["worker"] for cell in cells if cell["worker"] is not None} == {0: 0, 4: 0, 2: 1}
    assert section["memory"][:2] == [("peak of worker 0", "1 GiB"), ("peak of worker 1", "512 MiB")]
    page = render_report([run])
    assert 'title="cpu 2: worker 1"' in page
    assert "Cores and memory" in page
