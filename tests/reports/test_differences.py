import sqlite3

from made_runs import FACTS, make_run, read_run

from tenfold.common.files import read_sealed, sealed_json
from tenfold.reports import differences


def test_only_what_is_not_the_default_is_unusual(tmp_path):
    run = make_run(tmp_path, empty=True, lr=0.1, name="a title", workers=2)
    assert differences.changed_fields(run.experiment) == {"lr": 0.1, "workers": 2}


def test_differing_fields_hold_a_value_for_each_run(tmp_path):
    runs = [make_run(tmp_path, empty=True, lr=lr, epochs=5) for lr in (0.1, 0.2)]
    assert differences.differing_fields(runs) == {"lr": [0.1, 0.2]}
    assert differences.differing_fields(runs[:1]) == {}
    assert differences.differing_fields([]) == {}


def test_labels_say_what_differs_and_are_never_the_same(tmp_path):
    runs = [make_run(tmp_path, empty=True, lr=lr) for lr in (0.1, 0.2, 0.2)]
    assert differences.label_runs(runs) == ["lr 0.1", "lr 0.2 (run 2)", "lr 0.2 (run 3)"]


def test_repeats_differ_in_nothing_but_the_seed(tmp_path):
    runs = [make_run(tmp_path, empty=True, lr=lr, seed=seed) for seed in (0, 1) for lr in (0.1, 0.2)]
    assert [[run.id for run in group] for group in differences.group_repeats(runs)] == [[1, 3], [2, 4]]


def test_repeats_may_have_been_cut_into_other_stages(tmp_path):
    measured = {"metadata": FACTS | {"asked": {"stages": None}}, "workers": 2, "divide": "layers"}
    runs = [
        make_run(tmp_path, seed=seed, stages=stages, **measured) for seed, stages in enumerate((["0", "2"], ["0", "3"]))
    ]
    runs.append(make_run(tmp_path, workers=2, divide="layers", stages=["0", "2"]))
    assert [[run.id for run in group] for group in differences.group_repeats(runs)] == [[1, 2], [3]]


def test_python_objects_of_one_name_are_not_taken_for_repeats(tmp_path):
    runs = [make_run(tmp_path, empty=True, model=model) for model in (lambda: 1, lambda: 2)]
    assert len(differences.group_repeats(runs)) == 1  # read back from the store, only their name is known
    models = (lambda: 1, lambda: 2)
    given = [
        read_run(run.store, run.id, run.experiment.replace(model=item)) for run, item in zip(runs, models, strict=True)
    ]
    assert len(differences.group_repeats(given)) == 2


def test_a_default_that_was_also_set_is_no_difference(tmp_path):
    common = {"workers": 2, "steps_per_epoch": 2, "epochs": 1, "average": "weights"}
    runs = [make_run(tmp_path, strategy=strategy, **common) for strategy in ("allreduce", "butterfly")]
    assert set(differences.differing_fields(runs)) == {"strategy"}


def test_runs_whose_strategy_cannot_be_imported_here_are_described(tmp_path):
    resolved = {"average": "weights", "optimizer_state": "local"}
    run = make_run(tmp_path, empty=True, workers=2, lr=0.1, sync_every=4, **resolved)
    with sqlite3.connect(tmp_path / "tenfold.db") as connection:
        (text,) = connection.execute("SELECT experiment FROM runs").fetchone()
        experiment = read_sealed(text)
        experiment["parallel"]["strategy"] = "not_installed_here:Strategy"
        connection.execute("UPDATE runs SET experiment = ?", (sealed_json(experiment),))
    theirs = read_run(run.store, run.id).experiment
    changed = differences.changed_fields(theirs)
    assert changed["strategy"] == "not_installed_here:Strategy"
    assert changed["lr"] == 0.1
