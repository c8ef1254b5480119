"""Cross-validations on pages and in comparisons."""

import io
import re

import pytest
from made_runs import FACTS, made_folds, make_crossval, make_run
from rich.console import Console

from tenfold.reports import run_plots as fold_plots
from tenfold.reports import run_tables as fold_tables
from tenfold.reports import tables as crosstable
from tenfold.reports.comparison import Comparison
from tenfold.reports.pages import sections
from tenfold.reports.pages.run_pages import render_report
from tenfold.reports.pages.sections import folds_section, folds_so_far, machine_section
from tenfold.runs import FoldChanged, FoldsStarted


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(folder):
    return make_crossval(folder, made_folds(5, failed=(2,), cores=2))


class TestPage:
    def test_it_shows_scores_models_and_cores(self, run):
        page = render_report([run])
        for expected in ("Folds", "95% interval", "vote of all models", "97.12%", "best model by validation, fold 3"):
            assert expected in page
        assert "Folds on cores" in page
        assert "mean over 4 folds, 95% interval" in page

    def test_a_failed_fold_is_told_with_its_reason_as_text(self, run):
        page = render_report([run])
        assert "fold 2: ValueError: &lt;b&gt;no&lt;/b&gt;" in page
        assert "1 fold failed and is not drawn" in page
        assert "<b>no" not in page

    def test_a_plain_run_has_no_folds(self, folder):
        plain = make_run(folder, steps_per_epoch=30, epochs=1)
        assert folds_section(plain) is None
        assert "Folds" not in render_report([plain])

    def test_what_happened_to_folds_is_told_in_words(self, folder):
        made = make_crossval(folder, made_folds(3))
        about = {"fold": 2, "repeat": 1, "node": 0, "run": 3}
        told = [
            FoldChanged(at=1.0, worker=1, **about, status="started"),
            FoldChanged(at=1.0, worker=1, **about, status="failed", error="no luck"),
            FoldsStarted(at=2.0, mode="fold-by-fold", names=("fold 1", "fold 2", "fold 3"), epochs=1),
        ]
        made.store.append(made.id, told)
        assert [item["detail"] for item in sections.event_list(made)] == [
            *("fold 2 started", "fold 2 failed: no luck", "3 folds, fold by fold")
        ]

    def test_folds_of_several_nodes_and_repeats_have_different_names(self, tmp_path):
        made = make_crossval(tmp_path, {"folds": []})
        places = [(1, 1, 1), (1, 1, 2), (1, 2, 1)]
        made.store.append(
            made.id,
            [
                FoldChanged(at=1.0, worker=place, fold=fold, repeat=repeat, node=node, status="started")
                for place, (fold, repeat, node) in enumerate(places)
            ],
        )
        assert [row[0] for row in folds_so_far(made).rows] == [
            *("node 1, fold 1", "node 2, fold 1", "node 1, repeat 2, fold 1")
        ]

    def test_ids_are_unique(self, run):
        ids = re.findall(r'\bid="([^"]*)"', render_report([run]))
        assert len(ids) == len(set(ids))


class TestStrip:
    def test_every_part_has_its_points_mean_and_interval(self, run):
        chart = fold_plots.fold_scores_plot(run, "accuracy")
        assert [strip.name for strip in chart.strips] == ["training", "validation", "test"]
        assert chart.unit == "%"
        for strip in chart.strips:
            assert len(strip.values) == len(strip.notes) == 4
            assert strip.low < strip.mean < strip.high
        assert chart.strips[0].notes[1].startswith("fold 3: ")
        assert "95% interval" in chart.strips[0].about

    def test_a_loss_has_no_percent(self, run):
        assert fold_plots.fold_scores_plot(run, "loss").unit == ""

    def test_what_was_not_scored_is_not_drawn(self, run):
        assert fold_plots.fold_scores_plot(run, "f1") is None


class TestLanes:
    def test_one_lane_a_core_one_span_a_fold_and_core(self, run):
        chart = fold_plots.fold_timeline(run)
        assert chart.rows == ["core 0", "core 1"]
        assert set(chart.texts) == {f"fold {at}" for at in range(1, 6)}
        assert [name for name, _ in chart.kinds] == ["fold", "failed fold"]
        assert {text for text, kind in zip(chart.texts, chart.spans["kind"], strict=True) if kind} == {"fold 2"}
        assert chart.clock == "measured"

    def test_without_cores_there_are_no_lanes(self, folder):
        result = made_folds(3)
        for fold in result["folds"]:
            fold["cores"] = []
        assert fold_plots.fold_timeline(make_crossval(folder, result)) is None


class TestTables:
    def test_a_line_a_fold_then_the_spread(self, run):
        table = fold_tables.folds_table(run)
        assert [row[0] for row in table.rows] == [
            *(f"fold {at}" for at in range(1, 6)),
            *("mean", "deviation", "95% interval"),
        ]
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert "training, measured" in table.columns

    def test_repeats_are_named(self, folder):
        rows = fold_tables.folds_table(make_crossval(folder, made_folds(3, repeats=2))).rows
        assert rows[3][0] == "repeat 2, fold 1"

    def test_models_without_a_test_part_are_left_out(self, folder):
        result = made_folds(3)
        for model in result["models"].values():
            model["metrics"] = {}
        assert fold_tables.models_table(make_crossval(folder, result)).rows == []


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

    def test_pairs_that_were_not_run_are_dashes(self, compared):
        (time, _) = Comparison([compared(2, 1), compared(2, 2), compared(4, 1)]).crosstables()
        assert time.rows[1] == ("4 folds", "40.0", "–")

    def test_one_worker_stands_in_every_strategys_table(self, compared):
        runs = [compared(k, 1) for k in (2, 4)]
        runs += [compared(k, 2, strategy=name) for k in (2, 4) for name in ("allreduce", "ring")]
        tables = Comparison(runs).crosstables()
        assert [table.title for table in tables[::2]] == [
            *("allreduce, training time, s, measured", "ring, training time, s, measured")
        ]
        assert all(table.rows[0][1] == "20.0" for table in tables[::2])

    def test_there_is_none_unless_both_vary(self, compared):
        assert Comparison([compared(2, 1), compared(4, 1)]).crosstables() == []
        assert crosstable.make_crosstables([]) == []


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


def test_without_pinning_the_system_chose(tmp_path):
    assert machine_section(pinned(tmp_path, [[]]))["pinning"].startswith("No worker was pinned")


def test_where_nothing_is_known_there_is_no_section(tmp_path):
    run = make_run(tmp_path, steps_per_epoch=5, epochs=1)
    assert machine_section(run) is None
    assert "Cores and memory" not in render_report([run])
