from made_runs import make_run

from tenfold.report import compare


def test_only_what_is_not_the_default_is_unusual(tmp_path):
    run = make_run(tmp_path, empty=True, lr=0.1, name="a title", workers=2)
    assert compare.unusual(run.experiment) == {"lr": 0.1, "workers": 2}


def test_differing_fields_hold_a_value_for_each_run(tmp_path):
    runs = [make_run(tmp_path, empty=True, lr=lr, epochs=5) for lr in (0.1, 0.2)]
    assert compare.differing(runs) == {"lr": [0.1, 0.2]}
    assert compare.differing(runs[:1]) == {}
    assert compare.differing([]) == {}


def test_settings_leave_out_what_all_share_and_what_the_title_says(tmp_path):
    runs = [make_run(tmp_path, empty=True, epochs=5), make_run(tmp_path, empty=True, epochs=5, model="mlp", lr=0.3)]
    assert [compare.settings(run, runs) for run in runs] == ["", "lr=0.3"]


def test_labels_say_what_differs_and_are_never_the_same(tmp_path):
    runs = [make_run(tmp_path, empty=True, lr=lr) for lr in (0.1, 0.2, 0.2)]
    assert compare.labels(runs) == ["lr 0.1", "lr 0.2 (run 2)", "lr 0.2 (run 3)"]


def test_labels_are_titles_when_much_differs(tmp_path):
    first = make_run(tmp_path, empty=True, name="plain")
    other = make_run(tmp_path, empty=True, name="other", lr=0.1, workers=2, epochs=5, seed=3)
    assert compare.labels([first, other]) == ["plain", "other"]


def test_repeats_differ_in_nothing_but_the_seed(tmp_path):
    runs = [make_run(tmp_path, empty=True, lr=lr, seed=seed) for seed in (0, 1) for lr in (0.1, 0.2)]
    assert [[run.id for run in group] for group in compare.repeats(runs)] == [[1, 3], [2, 4]]


def test_labels_are_settings_when_titles_are_the_same(tmp_path):
    first = make_run(tmp_path, empty=True, lr=0.1, momentum=0.5)
    other = make_run(tmp_path, empty=True, workers=2, epochs=5)
    assert compare.labels([first, other]) == ["lr=0.1 momentum=0.5", "epochs=5 workers=2"]
