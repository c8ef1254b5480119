from made_runs import make_run

from tenfold.reports.related_runs import choose_other, compare_runs, find_baseline, offered_runs, similar_runs


def test_a_run_is_compared_with_its_baseline_or_the_one_before_it(tmp_path):
    first = make_run(tmp_path, steps_per_epoch=20, epochs=1, lr=0.1)
    make_run(tmp_path, steps_per_epoch=20, epochs=1, data="digits")
    second = make_run(tmp_path, steps_per_epoch=20, epochs=1, lr=0.2)
    many = make_run(tmp_path, steps_per_epoch=20, epochs=1, lr=0.1, workers=2)

    def chosen(run):
        other, what = choose_other(run, find_baseline(run), similar_runs(run))
        return other.id, what

    assert chosen(second) == (first.id, "the previous run of this model and data")
    assert chosen(many) == (first.id, "one worker, its baseline")
    assert chosen(first) == (many.id, "the latest run of this model and data")
    assert [number for number, _ in offered_runs(similar_runs(many), None)] == [second.id, first.id]
    table = compare_runs(many, first)
    assert table["fields"] == [("workers", "2", "1")]
    assert {name for name, *_ in table["results"]} >= {"test accuracy", "training time"}
