import pytest

import tenfold
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.recipes import agreement, load, names, run
from tenfold.recipes.recipe import Recipe
from tenfold.recipes.recipe_result import ABSENT, RecipeResult, ResultRow
from tenfold.recipes.run_recipe import is_available, settings_of

TINY = {
    "name": "tiny",
    "title": "two learning rates",
    "paper": {"key": "test", "citation": "A. Author", "place": "table 1"},
    "experiment": {"model": "mlp", "data": "digits", "threads": 1},
    "blocks": [{"verb": "train", "vary": {"lr": [0.01, 0.1]}}],
    "scales": {"small": {"fields": {"epochs": 1, "limit": 200}}},
    "show": {"columns": ["seconds", "accuracy", "gain"]},
    "rows": [{"label": "slow", "settings": {"lr": 0.01}, "paper": {"seconds": 2.0, "accuracy": 0.5}}],
}
NODES = {"groups": [{"count": 4, "step_seconds": 0.01}]}
SPECIAL_DATA = {"tweets", "flite"}


@pytest.mark.parametrize("name", names())
def test_every_recipe_names_experiments_that_exist(name):
    recipe = load(name)
    assert recipe.name == name
    stand_in = {"data": "digits", "metrics": []} if SPECIAL_DATA & set(recipe.needs) else {}
    for block in recipe.blocks:
        for size in recipe.scales.values():
            for settings in settings_of(block, size):
                Experiment(**recipe.experiment | block.fields | size.fields | settings | stand_in)


@pytest.mark.parametrize("name", names())
def test_quoted_percentages_follow_from_quoted_times(name):
    for quoted in load(name).percentages:
        of, against = quoted["of"], quoted["against"]
        gain, improvement = 100 * of / against, 100 * (of - against) / of
        assert min(abs(quoted["computed"] - gain), abs(quoted["computed"] - improvement)) < 0.006


def test_rows_match_the_paper_and_what_is_missing_says_so(tmp_path):
    result = run(Recipe(**TINY), runs=tmp_path)
    assert result.complete
    assert [row.label for row in result.rows] == ["slow", "lr 0.1"]
    assert result.rows[0].paper["seconds"] == 2.0
    assert result.rows[1].paper == {}
    assert all(row.clock == "measured" and row.ours["seconds"] > 0 for row in result.rows)
    assert ABSENT in result.to_markdown()
    again = run(Recipe(**TINY), runs=tmp_path)
    assert [one.id for setting in again.settings for one in setting.runs] == [1, 2]
    page = result.report(tmp_path / "page.html").read_text()
    assert "two learning rates" in page
    assert "<svg" in page


def test_more_cores_than_there_are_means_predicted(tmp_path):
    cluster = {"groups": [{"count": 64, "step_seconds": 0.01}]}
    experiment = TINY["experiment"] | {"cluster": cluster}
    blocks = [{"verb": "train", "vary": {"workers": [64]}}]
    result = run(Recipe(**TINY | {"experiment": experiment, "blocks": blocks, "rows": []}), runs=tmp_path)
    assert result.rows[0].clock == "predicted"
    assert "needs 64 cores" in result.rows[0].note


def test_what_cannot_be_run_is_a_row_with_its_reason(tmp_path):
    absent = [need for need in ("gpu", "flite") if not is_available(need)]
    if not absent:
        pytest.skip("this machine has everything that recipes need")
    result = run(Recipe(**TINY | {"needs": absent}), runs=tmp_path)
    assert not result.complete
    assert all(row.note.startswith("needs ") for row in result.rows)


def test_agreement_is_computed():
    rows = [(name, {"seconds": a}, {"seconds": b}) for name, a, b in (("a", 3, 1), ("b", 2, 0.5), ("c", 4, 9))]
    said = agreement.sentence("seconds", rows)
    assert "same order" in said
    assert "2 of 2" in said
    assert "both have the lowest value at b" in said
    other = agreement.sentence(
        "accuracy", [(n, {"accuracy": a}, {"accuracy": b}) for n, a, b in (("a", 1, 1), ("b", 2, 0))]
    )
    assert "opposite direction" in other
    assert "at b in the paper and at a here" in other
    assert agreement.sentence("seconds", rows[:1]) == ""


def test_unknown_recipes_and_malformed_files_are_explained(tmp_path):
    with pytest.raises(ExperimentError, match="did you mean 'dsmp-table-3'"):
        load("dsmp-table3")
    own = tmp_path / "own.toml"
    own.write_text('name = "x"\n')
    with pytest.raises(ExperimentError, match="title: Field required"):
        load(own)
    with pytest.raises(ExperimentError, match="unknown scale"):
        run(Recipe(**TINY), scale="huge", runs=tmp_path)


def test_the_paper_s_rows_alone_make_a_table():
    heads, cells = RecipeResult(load("dsmp-table-3"), "full", []).table()
    assert heads[1] == "seconds, paper"
    assert len(cells) == 4


def test_recipes_are_a_part_of_the_package():
    assert "lopez-table-1" in tenfold.recipes.names()


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
    assert result.agreement() == ["seconds: it changes in the same direction; both have the lowest value at b."]


def test_a_schematic_shows_nodes_and_folds(tmp_path):
    for name, word in (("dsmp-figure-1", "node 4"), ("dsmp-figure-2", "fold 10")):
        page = run(name, runs=tmp_path).report(tmp_path / f"{name}.html").read_text()
        assert "<svg" in page
        assert word in page
