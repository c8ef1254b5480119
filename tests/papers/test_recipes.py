import pytest
from forked import forked_python, run_command, start_program
from launchers import mpirun
from looped import looped
from made_runs import make_run
from typer.testing import CliRunner

import tenfold
from tenfold.cli import app as cli_app
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.papers import load, names, run
from tenfold.papers.recipe import PaperClaim, Recipe, Size, read_number
from tenfold.papers.recipe_page import recipe_plots, write
from tenfold.papers.recipe_result import Pair, RecipeResult, ResultRow, Setting, check_claim, compare_column
from tenfold.papers.run_recipe import is_available, settings_of
from tenfold.reports.comparison_rows import DOUBTS
from tenfold.reports.formatting import NOTHING

TINY = {
    "name": "tiny",
    "title": "two learning rates",
    "paper": {"key": "test", "citation": "A. Author", "place": "table 1"},
    "experiment": {"model": "mlp", "data": "digits", "threads": 1},
    "blocks": [{"verb": "train", "vary": {"lr": [0.01, 0.1]}}],
    "scales": {"small": {"fields": {"epochs": 1, "limit": 200}}},
    "show": {"columns": ["seconds", "accuracy", "gain"]},
    "rows": [
        {"label": "slow", "settings": {"lr": 0.01}, "paper": {"seconds": 2.0, "accuracy": 0.5}},
        {"label": "absent", "settings": {"lr": 5.0}, "paper": {"seconds": 1.0}},
    ],
}
NODES = {"groups": [{"count": 4, "step_seconds": 0.01}]}
LINES = {"columns": ["seconds", "accuracy"], "plot": "lines", "over": "sync_every"}
OWN = """title = "mine"
[paper]
key = "x"
citation = "me"
place = "table 1"
[[blocks]]
vary = {lr = [0.1]}
"""
SPECIAL_DATA = {"tweets", "flite"}


@looped("name", names())
def test_every_recipe_names_experiments_that_exist(name):
    recipe = load(name)
    assert recipe.name == name
    stand_in = {"data": "digits", "metrics": []} if SPECIAL_DATA & set(recipe.needs) else {}
    for block in recipe.blocks:
        for size in recipe.scales.values():
            for settings in settings_of(block, size):
                Experiment(**recipe.experiment | block.fields | size.fields | settings | stand_in)


@looped("name", names())
def test_quoted_percentages_follow_from_quoted_times(name):
    for quoted in load(name).percentages:
        of, against = quoted["of"], quoted["against"]
        gain, improvement = 100 * of / against, 100 * (of - against) / of
        assert min(abs(quoted["computed"] - gain), abs(quoted["computed"] - improvement)) < 0.006


def test_titles_of_slides_are_those_of_the_slides():
    titles = {
        "Google Colab CPU: Training epochs",
        "NVIDIA RTX 3070: Training epochs",
        "Deep Dive: Variation of Optimizers",
        "Deep Dive: Learning Rates",
        "Data Parallelization on GPU: Learning Rates",
        "Data Parallelization on GPU: Batch Size",
        "Executive Summary",
    }
    quoted = [title for name in names() if name.startswith("voss") for title in load(name).paper.place.split('"')[1::2]]
    assert set(quoted) == titles


def test_a_claim_about_the_number_of_layers_varies_it():
    block = load("singh-size").blocks[0]
    numbers, widths = ({measure(hidden) for hidden in block.vary["hidden"]} for measure in (len, max))
    assert len(numbers) == len(widths) == 3
    assert len(block.vary["hidden"]) == 9


def test_rows_match_the_paper_and_what_is_missing_says_so(tmp_path):
    result = run(Recipe(**TINY), runs=tmp_path)
    assert result.complete
    assert [row.label for row in result.rows] == ["slow", "absent", "lr 0.1"]
    assert result.rows[0].paper["seconds"] == 2.0
    assert result.rows[2].paper == {}
    assert all(row.clock == "measured" and row.ours["seconds"] > 0 for row in (result.rows[0], result.rows[2]))
    assert "0.5" not in result.table().rows[2]
    again = run(Recipe(**TINY), runs=tmp_path)
    ids = [[run.id for setting in one_of.settings for run in setting.runs] for one_of in (result, again)]
    assert ids[0] == ids[1]
    page = result.report(tmp_path / "page.html").read_text()
    assert "two learning rates" in page
    assert '"kind": "bar-table"' in page


def test_a_short_first_run_of_a_process_is_repeated_and_never_reused(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        'name = "x"\nexperiment = {model = "mlp", data = "digits", threads = 1, epochs = 1, limit = 200}\n'
        + OWN.replace("[0.1]", "[0.1, 0.2]")
    )
    for _ in range(2):
        process = start_program(run_command, str(tmp_path), "recipe", "run", "own.toml", "--runs", "runs", "-q")
        process.join(100)
        assert process.exitcode == 0
    first, again, *others = sorted(tenfold.list_runs(runs=tmp_path / "runs"), key=lambda one: one.id)
    assert len(others) == 1
    assert first.experiment == again.experiment
    result = run(own, runs=tmp_path / "runs")
    assert [setting.runs[0].id for setting in result.settings] == [2, 3]


def test_what_is_recorded_is_run_again_if_asked_and_progress_counts(tmp_path):
    lines = []
    for fresh in (False, False, True):
        result = run(Recipe(**TINY), runs=tmp_path, fresh=fresh, progress=lines.append)
        lines.append([setting.runs[0].id for setting in result.settings])
    assert lines[2] == lines[5]
    assert not set(lines[2]) & set(lines[8])
    assert ["1 of 2" in lines[0], "2 of 2" in lines[1]] == [True, True]


def test_ranks_are_launched_under_mpirun_and_compared_with_one_process(tmp_path, monkeypatch):
    mpirun()
    command = "tenfold.papers.run_recipe.tenfold_command"
    monkeypatch.setattr(command, lambda *words: [*forked_python(), "-m", "tenfold", *words])
    blocks = [
        {"verb": "train"},
        {
            "verb": "launch",
            "vary": {"transport": ["mpi"]},
            "fields": {"workers": 2, "distribute": "scatter", "strategy": "parameter-server", "average": "gradients"},
        },
    ]
    rows = [{"label": "two", "settings": {"verb": "launch"}, "paper": {"PI": "nearly 50 %"}}]
    recipe = Recipe(**TINY | {"blocks": blocks, "rows": rows, "show": {"columns": ["seconds", "PI", "accuracy"]}})
    first, again = (run(recipe, runs=tmp_path) for _ in range(2))
    two = first.rows[0]
    assert (two.clock, two.note) == ("measured", "")
    assert {"PI", "accuracy"} <= set(two.ours)
    (launched,) = first.settings[1].runs
    assert launched.metadata["launch"]["launcher"] == "open-mpi"
    assert again.settings[1].runs[0].id == launched.id
    nowhere = TINY["experiment"] | {"data": str(tmp_path / "nowhere.csv")}
    (reason,) = run(Recipe(**TINY | {"blocks": blocks[1:], "experiment": nowhere, "rows": []}), runs=tmp_path).missing()
    assert "nowhere.csv" in reason


def test_more_cores_than_there_are_means_predicted(tmp_path):
    cluster = {"groups": [{"count": 64, "step_seconds": 0.01}]}
    experiment = TINY["experiment"] | {"cluster": cluster}
    blocks = [{"verb": "train", "vary": {"workers": [64]}}]
    result = run(Recipe(**TINY | {"experiment": experiment, "blocks": blocks, "rows": []}), runs=tmp_path)
    assert result.rows[0].clock == "predicted"
    assert "needs 64 cores" in result.rows[0].note


def test_the_device_that_is_asked_for_is_not_that_of_rows_with_their_own(tmp_path):
    blocks = [{"verb": "train", "vary": {"device": ["cpu"]}}, {"verb": "train"}]
    result = run(Recipe(**TINY | {"blocks": blocks, "rows": []}), device="tpu", runs=tmp_path)
    assert [bool(setting.runs) for setting in result.settings] == [True, False]
    assert "tpu" in result.settings[1].reason


def test_what_cannot_be_run_is_a_row_with_its_reason(tmp_path):
    absent = [need for need in ("gpu", "flite", "recordings") if not is_available(need)]
    if not absent:
        pytest.skip("this machine has everything that recipes need")
    result = run(Recipe(**TINY | {"needs": absent, "rows": []}), runs=tmp_path)
    assert not result.complete
    assert all(row.note.startswith("needs ") for row in result.rows)


def pairs(*numbers):
    return [Pair(name, paper, ours) for name, paper, ours in numbers]


def compared(column, numbers):
    return compare_column(column, numbers, {pair.label: pair.paper for pair in numbers})


def test_agreement_is_computed():
    falling = pairs(("a", 4, 3), ("b", 2, 2), ("c", 1, 0.5))
    found = compared("seconds", falling)
    assert [item.text for item in found] == [
        "Time falls at every step, as in the paper.",
        "Both have the lowest value at c.",
    ]
    assert all(item.agrees for item in found)
    found = compared("seconds", pairs(("1 core", 1, 4), ("2 cores", 2, 3)))
    assert found[0][:2] == ("From 1 core to 2 cores: 2x slower in the paper, 1.33x faster here.", False)
    found = compared("seconds", pairs(("1 core", 1, 4), ("2 cores", 2, 4.05)))
    assert found[0][:2] == ("From 1 core to 2 cores: 2x slower in the paper, about as fast here.", False)
    up_and_down = pairs(("a", 3, 1), ("b", 2, 0.5), ("c", 4, 9))
    assert [item.agrees for item in compared("seconds", up_and_down)] == [True, True]
    differing = compared("accuracy", pairs(("a", 0.1, 0.1), ("b", 0.2, 0), ("c", 0.1, 0)))
    assert [item.agrees for item in differing] == [False, False, False]
    assert differing[0].text == "From a to b: from 10.00% to 20.00% in the paper, from 10.00% to 0.00% here."
    single = compare_column("seconds", [Pair("a", 9511.66, 1.0, "9,511.66 s")], {"a": 9511.66})
    assert single[0][:2] == ("Time, a: 9,511.66 s in the paper, 1.00 s here.", None)
    assert compare_column("accuracy", [], {}) == []


def test_sentences_over_some_rows_say_which_and_know_where_the_paper_is_best():
    found = compare_column(
        "seconds", pairs(("1 core", 507, 3), ("2 cores", 1004, 2)), {"1 core": 507, "2 cores": 1004, "4 cores": 502}
    )
    text = " ".join(item.text for item in found)
    assert "lowest value is at 4 cores, which is not compared" in text
    assert "not compared: 4 cores" in text
    assert found[1].agrees is None


def test_what_the_paper_prints_is_shown_as_printed_and_words_are_compared_with_nothing():
    printed = {"seconds": "9,511.66 s", "accuracy": "nearly 50 %", "gain": "SLOWEST"}
    row = {"label": "slow", "settings": {"lr": 0.01}, "paper": printed}
    result = RecipeResult(Recipe(**TINY | {"rows": [row]}), "small", [])
    assert result.table().rows[0][1:] == ["9,511.66 s", NOTHING, "nearly 50 %", "SLOWEST", NOTHING, ""]
    assert result.rows[0].paper == {"seconds": 9511.66}
    assert read_number("seconds", "507,069 ms") == 507.069
    assert read_number("accuracy", "33 %") == 0.33
    assert read_number("PI", "-48.08 %") == -48.08


def test_a_metric_that_only_the_paper_has_stands_beside_ours_under_its_own_name():
    result = RecipeResult(load("dsmp-table-2"), "small", [])
    node = next(row for row in result.rows if row.label == "1 node")
    node.ours.update(precision_at_10=0.6, seconds=1.0)
    heads = result.table().columns
    assert "accuracy, paper" in heads
    assert "precision at 10, ours" in heads
    assert not {"accuracy, ours", "precision at 10, paper"} & set(heads)
    assert not any("in the paper" in sentence for sentence in result.agreement())


def test_a_small_difference_has_a_size():
    claim = PaperClaim(said="a small decrease", column="accuracy", best={"workers": 1}, at_most=0.02)
    found = check_claim(claim, [("", True, 0.49), ("", False, 0.48), ("", False, 0.41)])
    assert not found.agrees
    assert "49.00% against 41.00%" in found.text
    assert "2 percentage points" in found.text
    assert check_claim(claim, [("", True, 0.49), ("", False, 0.48)]).agrees
    assert not check_claim(claim, [("", True, 0.49), ("", False, 0.50)]).agrees
    large = claim.model_copy(update={"at_most": None, "at_least": 0.05})
    assert check_claim(large, [("", True, 0.49), ("", False, 0.41)]).agrees
    assert not check_claim(large, [("", True, 0.49), ("", False, 0.48)]).agrees
    alike = claim.model_copy(update={"at_most": None, "similar": 0.02})
    assert check_claim(alike, [("", True, 0.49), ("", False, 0.50)]).agrees
    assert not check_claim(alike, [("", True, 0.49), ("", False, 0.60)]).agrees


def test_unknown_recipes_and_malformed_files_are_explained(tmp_path):
    with pytest.raises(ExperimentError, match="did you mean 'dsmp-table-3'"):
        load("dsmp-table3")
    own = tmp_path / "own.toml"
    own.write_text('name = "x"\n')
    with pytest.raises(ExperimentError, match="title: Field required"):
        load(own)
    text = own.read_text() + OWN
    own.write_text(text.replace("lr = [0.1]", "lrr = [0.1]"))
    with pytest.raises(ExperimentError, match="lr"):
        load(own)
    own.write_text(text + '[[rows]]\nlabel = "a"\nsettings = {workers = 2}\n')
    with pytest.raises(ExperimentError, match=r"rows\.0\.settings"):
        load(own)
    own.write_text(text.replace("lr = [0.1]", 'lr = ["much"]'))
    with pytest.raises(ExperimentError, match="recipe x, train lr=much: "):
        run(own, runs=tmp_path)
    with pytest.raises(ExperimentError, match="unknown scale"):
        run(Recipe(**TINY), scale="huge", runs=tmp_path)


def test_notes_say_which_values_a_scale_leaves_out():
    missing = Setting("simulate", {"workers": 4, "sync_every": 1}, reason="needs flite")
    notes = RecipeResult(load("su-chen-frequency"), "small", [missing]).notes()
    assert notes[0].endswith("epochs = 3; workers in 4; sync_every in 1, 10, epoch")


def test_the_paper_s_rows_alone_make_a_table():
    table = RecipeResult(load("dsmp-table-3"), "full", []).table()
    heads, cells = table.columns, table.rows
    assert heads[1] == "seconds, paper"
    assert len(cells) == 4


def test_recipes_are_a_part_of_the_package():
    assert "lopez-table-1" in tenfold.papers.names()


def test_a_cross_validation_can_be_predicted_without_training(tmp_path):
    recipe = TINY | {
        "experiment": TINY["experiment"] | {"folds": 4, "fold_mode": "data-and-folds", "cluster": NODES},
        "blocks": [{"verb": "forecast", "vary": {"workers": [1, 2]}}],
        "show": {"columns": ["seconds", "speedup"]},
        "rows": [],
    }
    result = run(Recipe(**recipe), runs=tmp_path)
    assert result.complete
    assert [row.clock for row in result.rows] == ["predicted"] * 2
    assert result.rows[1].ours["speedup"] == pytest.approx(2, rel=0.3)


def test_folds_on_a_virtual_cluster_have_metrics_and_a_predicted_time(tmp_path):
    recipe = TINY | {
        "experiment": TINY["experiment"] | {"folds": 2, "fold_mode": "data-and-folds", "cluster": NODES},
        "blocks": [{"verb": "simulate", "vary": {"workers": [1, 4]}}],
        "scales": {"small": {"fields": {"epochs": 1, "limit": 600}}},
        "show": {"columns": ["seconds", "accuracy", "compute_seconds"]},
        "rows": [],
    }
    result = run(Recipe(**recipe), runs=tmp_path)
    assert result.complete
    for row in result.rows:
        assert row.clock == "predicted"
        assert "accuracy" in row.ours
        assert row.ours["compute_seconds"] == pytest.approx(row.ours["seconds"])  # of the cluster, too
    assert result.rows[1].ours["seconds"] < result.rows[0].ours["seconds"]


def test_more_threads_than_cores_are_predicted(tmp_path):
    block = {"verb": "train", "vary": {"threads": [512]}, "fields": {"cluster": NODES}}
    result = run(Recipe(**TINY | {"blocks": [block], "rows": []}), runs=tmp_path)
    assert result.complete
    assert result.rows[0].clock == "predicted"
    assert "needs 512 cores" in result.rows[0].note


def test_measured_times_are_not_held_against_predicted_ones():
    def row(label, clock, paper, ours):
        return ResultRow(label, {}, {"seconds": paper}, {"seconds": ours}, clock)

    result = RecipeResult(Recipe(**TINY | {"rows": [], "show": {"columns": ["seconds"]}}), "small", [])
    result.rows = [row("a", "measured", 1, 9), row("b", "predicted", 2, 2), row("c", "predicted", 3, 3)]
    first, *_, last = result.agreement()
    assert first == "From b to c: 1.5x slower in the paper, 1.5x slower here."
    assert "not compared: a" in last


def test_a_schematic_shows_nodes_and_folds(tmp_path):
    for name, word in (("dsmp-figure-1", "node 4"), ("dsmp-figure-2", "fold 10")):
        page = run(name, runs=tmp_path).report(tmp_path / f"{name}.html").read_text()
        assert '"kind": "bar-table"' in page
        assert word in page


def test_lines_have_the_same_color_in_all_plots_and_words_are_places_in_order(tmp_path):
    rows = [
        ResultRow("a", {"sync_every": x, "workers": n}, {}, {"seconds": 1.0, "accuracy": 0.5}, "predicted")
        for x in (1, 10, "epoch")
        for n in (4, 16)
    ]
    del rows[0].ours["seconds"]
    result = RecipeResult(Recipe(**TINY | {"rows": [], "show": LINES}), "small", [])
    result.rows = rows
    seconds, accuracy = recipe_plots(result)
    assert list(accuracy.x_names) == ["1", "10", "epoch"]
    assert result.report(tmp_path / "page.html").exists()
    assert [line.x for line in accuracy.lines] == [[0, 1, 2], [0, 1, 2]]
    colors = {line.label: line.color for line in accuracy.lines}
    assert {line.label.removesuffix(", predicted"): line.color for line in seconds.lines} == colors
    assert accuracy.lines[0].y == [50.0] * 3


def test_of_a_simulated_run_only_the_times_are_predicted():
    def row(workers, clock, accuracy):
        return ResultRow("a", {"workers": workers}, {}, {"seconds": 1.0, "accuracy": accuracy}, clock)

    result = RecipeResult(Recipe(**TINY | {"rows": [], "show": LINES | {"over": "workers"}}), "small", [])
    result.rows = [row(1, "measured", 0.9), row(1, "predicted", 0.9), row(2, "predicted", 0.8)]
    seconds, accuracy = recipe_plots(result)
    assert [line.label for line in seconds.lines] == ["measured", "predicted"]
    assert [(line.label, line.fill, line.y) for line in accuracy.lines] == [("ours", "full", [90.0, 80.0])]
    result.rows[0].ours["accuracy"] = 0.7
    assert [line.label for line in recipe_plots(result)[1].lines] == ["real", "simulated"]


def test_columns_can_be_of_one_part_and_one_kind_of_time(tmp_path):
    columns = ["train_accuracy", "validation_accuracy", "test_accuracy", "seconds", "seconds_with_evaluation"]
    experiment = TINY["experiment"] | {"validation_fraction": 0.2}
    recipe = Recipe(**TINY | {"experiment": experiment, "rows": [], "show": {"columns": columns, "select": True}})
    result = run(recipe, runs=tmp_path)
    chosen = max(result.rows, key=lambda row: row.ours["validation_accuracy"])
    for row in result.rows:
        assert row.ours["seconds_with_evaluation"] > row.ours["seconds"]
        assert row.selected == (row is chosen) == ("test_accuracy" in row.ours) == ("accuracy" in row.ours)
        assert "train_accuracy" in row.ours
    assert f"selected: {chosen.label}, the best on the validation part" in result.notes()
    assert f"{chosen.label} (selected)" in result.report(tmp_path / "page.html").read_text()


def test_columns_that_do_not_exist_are_named(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('name = "x"\n' + OWN + '[show]\ncolumns = ["test_acuracy"]\nselect = true\n')
    with pytest.raises(ExperimentError, match="did you mean 'test_accuracy'") as caught:
        load(own)
    assert "needs a validation part" in str(caught.value)


def test_bars_of_negative_numbers_go_to_the_left_of_zero():
    columns = {"show": {"columns": ["PI"]}}
    result = RecipeResult(Recipe(**TINY | {"rows": []} | columns), "small", [])
    result.rows = [ResultRow(str(value), {}, {}, {"PI": value}, "measured") for value in (50.0, -50.0)]
    (bars,) = recipe_plots(result)
    assert bars.zeros == [0.5]
    assert [(part.begin, part.end) for _, cells in bars.rows for part in cells[0]] == [(0.5, 1.0), (0.0, 0.5)]


def test_rows_measured_on_a_busy_machine_are_marked_as_in_comparisons(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 99.0, 99.0))
    result = run(Recipe(**TINY | {"rows": []}), runs=tmp_path)
    assert all(row.doubts == ("load",) for row in result.rows)
    assert result.table().rows[0][0] == "lr 0.01 !"
    assert f"! {DOUBTS['load']}" in result.notes()
    assert 'class="doubtful"' in result.report(tmp_path / "page.html").read_text()


def test_rows_predicted_from_steps_of_a_busy_machine_are_marked(tmp_path, monkeypatch):
    monkeypatch.setenv("TENFOLD_PROFILE", str(tmp_path / "profile.toml"))
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 99.0, 99.0))
    fields = {"link": "1gbe", "workers": 2, "compression": "int8"}
    blocks = [{"verb": verb, "vary": {"lr": [0.1]}, "fields": fields} for verb in ("simulate", "forecast")]
    result = run(Recipe(**TINY | {"rows": [], "blocks": blocks}), runs=tmp_path)
    assert [row.doubts for row in result.rows] == [("load",)] * 2
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    again = run(Recipe(**TINY | {"rows": [], "blocks": blocks[1:]}), runs=tmp_path)
    assert [row.doubts for row in again.rows] == [()]


def test_speedups_compare_times_to_the_target_and_are_left_out_where_one_worker_does_not_reach_it(tmp_path):
    def ratios(*times):
        show = {"columns": ["seconds_to_target", "speedup"]}
        settings = [
            Setting(
                "train",
                {"workers": n},
                runs=[make_run(tmp_path, workers=n, result={"seconds": 1.0, "seconds_to_target": time})],
            )
            for n, time in zip((1, 2, 4), times, strict=True)
        ]
        result = RecipeResult(Recipe(**TINY | {"rows": [], "show": show}), "small", settings)
        return [row.ours.get("speedup") for row in result.rows]

    assert ratios(8.0, 4.0, None) == [1.0, 2.0, None]
    assert ratios(None, 4.0, 2.0) == [None, None, None]


def test_a_speedup_with_a_much_worse_result_is_warned_of():
    show = {"columns": ["seconds", "speedup", "accuracy"]}
    result = RecipeResult(Recipe(**TINY | {"rows": [], "show": show}), "small", [])
    result.rows = [
        ResultRow(
            f"{n} workers", {"workers": n}, {}, {"seconds": 1 / n, "speedup": n, "accuracy": accuracy}, "predicted"
        )
        for n, accuracy in ((1, 0.69), (4, 0.66), (16, 0.34))
    ]
    (warning,) = [note for note in result.notes() if "unequal" in note]
    assert "16 workers" in warning
    assert "69.00%" in warning


def test_claims_in_words_are_checked_group_by_group():
    claim = PaperClaim(said="ten folds are best", column="accuracy", best={"folds": 10}, each=["workers"])
    rows = [("1 worker", False, 0.3), ("1 worker", True, 0.4), ("2 workers", False, 0.3), ("2 workers", True, 0.2)]
    both = check_claim(claim, rows)
    assert not both.agrees
    assert "for 1 worker (40.00% against 30.00%), but not for 2 workers (20.00% against 30.00%)" in both.text
    assert check_claim(claim, rows[:2]).agrees
    assert check_claim(claim, rows[2:]).agrees is False
    assert check_claim(claim, rows[:1]) is None


def test_a_claim_about_every_run_names_the_value_that_it_takes_it_to_mean():
    claim = PaperClaim(said="all are excellent", column="accuracy", reaches=0.98)
    found = check_claim(claim, [("", True, 0.99), ("", True, 0.97)])
    assert not found.agrees
    assert "97.00% to 99.00%, taking it to mean 98.00% or better" in found.text
    assert check_claim(claim, [("", True, 0.99)]).agrees
    assert check_claim(claim, []) is None


def test_claims_about_times_say_by_which_factor():
    claim = PaperClaim(said="up to 8x faster", column="seconds", best={"device": "cuda"}, each=["lr"])
    rows = [("lr 1", False, 6.0), ("lr 1", True, 2.0), ("lr 2", False, 5.0), ("lr 2", True, 4.0)]
    slower = [("lr 3", False, 1.0), ("lr 3", True, 2.5)]
    assert "in all 2 cases (1.25x to 3x faster)" in check_claim(claim, rows).text
    reversed_rows = [(group, not favored, value) for group, favored, value in rows]
    assert "not confirmed here in any of 2 cases (1.25x to 3x slower)" in check_claim(claim, reversed_rows).text
    assert check_claim(claim, rows + slower).text.endswith(
        "for lr 1; lr 2 (1.25x to 3x faster), but not for lr 3 (2.5x slower)."
    )
    numbers = claim.model_copy(update={"factor": True})
    assert check_claim(numbers, rows)[:2] == (
        "The paper says “up to 8x faster”; here it is 1.25x to 3x faster in 2 cases.",
        None,
    )
    assert check_claim(numbers, rows + slower).text.endswith("from 2.5x slower to 3x faster in 3 cases.")


def test_a_time_of_zero_has_no_factor():
    claim = PaperClaim(said="up to 8x faster", column="seconds", best={"device": "cuda"}, each=["lr"])
    rows = [("lr 1", False, 6.0), ("lr 1", True, 0.0)]
    assert check_claim(claim, rows).agrees
    assert not check_claim(claim, [("lr 1", False, 0.0), ("lr 1", True, 6.0)]).agrees
    numbers = claim.model_copy(update={"factor": True})
    assert check_claim(numbers, rows) is None
    more = [*rows, ("lr 2", False, 6.0), ("lr 2", True, 2.0)]
    assert check_claim(numbers, more).text.endswith("here it is 3x faster.")


def test_a_claim_compares_the_rows_that_it_names():
    claims = [
        {"said": "more is slower", "column": "seconds", "best": {"lr": 0.1}, "against": {"lr": 0.2}},
        {"said": "any other is slower", "column": "seconds", "against": {"lr": 0.3}},
        {"said": "on a GPU", "column": "seconds", "best": {"lr": 9}},
    ]
    result = RecipeResult(Recipe(**TINY | {"rows": [], "claims": claims}), "small", [])
    result.rows = [
        ResultRow("", {"lr": lr}, {}, {"seconds": s}, "measured") for lr, s in ((0.1, 1), (0.2, 2), (0.3, 0.5))
    ]
    first, second, third = result.findings()
    assert (first.agrees, second.agrees, third.agrees) == (True, False, None)
    assert "2x faster" in first.text
    assert "not run" in third.text


def test_a_claim_about_some_rows_is_decided_by_their_clock_and_not_by_that_of_others():
    claims = [
        {"said": "each strategy", "column": "seconds", "against": {"workers": 1}, "each": ["strategy"]},
        {"said": "a divided model", "column": "seconds", "against": {"workers": 1}, "each": ["divide"]},
    ]
    vary = [{"strategy": ["ring"], "workers": [1, 2]}, {"divide": ["layers"], "workers": [1, 2]}]
    recipe = Recipe(**TINY | {"rows": [], "claims": claims, "blocks": [{"vary": varied} for varied in vary]})
    result = RecipeResult(recipe, "small", [])
    result.rows = [
        ResultRow("", {"strategy": "ring", "workers": n}, {}, {"seconds": s}, "predicted")
        for n, s in ((1, 9), (2, 8), (4, 7))
    ]
    result.rows += [
        ResultRow("", {"divide": "layers", "workers": n}, {}, {"seconds": s}, "measured") for n, s in ((1, 1), (2, 2))
    ]
    first, second = result.findings()
    assert (first.agrees, second.agrees) == (True, False)
    assert "1.29x faster" in first.text
    assert "2x slower" in second.text


@pytest.mark.parametrize("name", [name for name in names() if "speedup" in load(name).show.columns])
def test_every_measured_row_has_one_of_a_single_worker_to_be_compared_with(name):
    trained = [block for block in load(name).blocks if block.verb == "train"]
    settings = [block.fields | item for block in trained for item in settings_of(block, Size())]
    several = [item for item in settings if item.get("workers", 1) > 1]
    alone = [item for item in settings if item.get("workers", 1) == 1]
    assert all(any(item.get("optimizer") == one.get("optimizer") for one in alone) for item in several)


def test_bars_that_our_copy_of_a_paper_lacks_say_so_in_the_table():
    figure = {row.label: row.paper for row in load("singh-figure-4").rows}
    assert [paper.get("seconds") for paper in figure.values()] == [
        *["not in our copy"] * 2,
        *[None] * 2,
        *["not in our copy"] * 2,
    ]


def test_a_page_of_several_recipes_has_contents_and_says_what_is_missing(tmp_path):
    failed = RecipeResult(load("dsmp-table-5"), "small", [], problem="the disk is full")
    page = write([failed, run("dsmp-figure-1", runs=tmp_path)], tmp_path / "page.html").read_text()
    assert 'href="#dsmp-table-5" data-verdict="not run"' in page
    assert "the disk is full" in page


def test_each_recipe_has_a_verdict():
    def verdict(paper, ours, doubts=()):
        rows = [
            ResultRow(str(at), {}, {"seconds": a}, {"seconds": b}, doubts=doubts)
            for at, (a, b) in enumerate(zip(paper, ours, strict=True))
        ]
        result = RecipeResult(Recipe(**TINY | {"rows": []}), "small", [])
        result.rows = rows
        return result.verdict

    assert verdict([2, 1], [4, 3]) == "agrees"
    assert verdict([2, 1], [3, 4]) == "differs"
    assert verdict([2], [3]) == "no number to compare"
    assert verdict([2, 1], [3, 4], doubts=("load",)) == "unreliable times"
    waiting = RecipeResult(Recipe(**TINY | {"rows": []}), "small", [Setting("train", {}, reason="needs a CUDA device")])
    assert waiting.verdict == "needs a GPU"
    failed = RecipeResult(Recipe(**TINY | {"rows": []}), "small", [Setting("train", {}, reason="no such file")])
    assert failed.verdict == "not run"


def test_bars_of_close_accuracies_begin_where_they_differ_and_say_so():
    result = RecipeResult(Recipe(**TINY | {"rows": [], "show": {"columns": ["accuracy", "seconds"]}}), "small", [])
    result.rows = [
        ResultRow(str(at), {}, {}, {"accuracy": a, "seconds": s})
        for at, (a, s) in enumerate(((0.97, 9.7), (0.99, 9.9)))
    ]
    (bars,) = recipe_plots(result)
    accuracy, seconds = bars.measures
    assert "begin at 96" in accuracy
    assert seconds == "seconds"
    lengths = [
        [part.end - part.begin for part in cells]
        for _, cells in [(name, [c[0] for c in cells]) for name, cells in bars.rows]
    ]
    assert lengths[0][0] < 0.5 * lengths[1][0]
    assert lengths[0][1] > 0.9 * lengths[1][1]


def test_bars_have_the_papers_numbers_as_it_prints_them():
    result = RecipeResult(Recipe(**TINY | {"rows": [], "show": {"columns": ["seconds"]}}), "small", [])
    result.rows = [ResultRow("2", {}, {"seconds": 1004.192}, {"seconds": 90.0}, printed={"seconds": "1,004,192 ms"})]
    (bars,) = recipe_plots(result)
    ours, paper = bars.rows[0][1][0]
    assert (ours.text, paper.text) == ("90.0 s", "1,004,192 ms")
    assert paper.note.endswith("1,004,192 ms")


def test_the_paper_has_a_color_and_a_marker_of_its_own():
    rows = [
        ResultRow(
            f"{x} {n}",
            {"sync_every": x, "workers": n},
            {"seconds": 2.0} if n == 4 else {},
            {"seconds": 1.0},
            "measured",
        )
        for x in (1, 10)
        for n in (4, 8, 16)
    ]
    result = RecipeResult(Recipe(**TINY | {"rows": [], "show": LINES}), "small", [])
    result.rows = rows
    (seconds,) = recipe_plots(result)
    styles = {line.label: (line.color, line.markers[0]) for line in seconds.lines}
    paper = next(style for label, style in styles.items() if label.startswith("paper"))
    ours = [style for label, style in styles.items() if not label.startswith("paper")]
    assert len(ours) == 3
    assert all(style[0] != paper[0] and style[1] != paper[1] for style in ours)


def test_with_all_one_failing_recipe_does_not_stop_the_others(tmp_path, monkeypatch):
    def fail(recipe, **_options):
        if recipe.name == "dsmp-table-5":
            raise RuntimeError("the disk is full")
        return RecipeResult(recipe, "small", [])

    monkeypatch.setattr("tenfold.papers.run_recipe.run", fail)
    ended = CliRunner().invoke(cli_app, ["recipe", "run", "--all", "-o", str(tmp_path / "papers.html")])
    assert ended.exit_code == 3
    assert "dsmp-table-5: the disk is full" in ended.output
    assert "incomplete: dsmp-table-5" in ended.output
    assert 'id="voss-summary"' in (tmp_path / "papers.html").read_text()
