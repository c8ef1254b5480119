from made_runs import make_run

from tenfold.reports.pages.run_pages import render_report
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


def test_a_report_shows_what_differs_and_nothing_where_there_is_no_other_run(tmp_path):
    first = make_run(tmp_path, steps_per_epoch=20, epochs=1, lr=0.1)
    assert "Compared with another run" not in render_report([first])
    page = render_report([make_run(tmp_path, steps_per_epoch=20, epochs=1, lr=0.25, name="<b>")])
    assert "Compared with another run" in page
    assert '<td class="words">0.25</td><td class="words">0.1</td>' in page
    assert "<select" not in page


def test_a_run_that_is_offered_is_labeled_with_its_main_metric():
    record = {"id": 3, "title": "house prices", "status": "running", "experiment": {}}
    metrics = {"loss": 0.25, "r2": 0.5}
    [(_, label)] = offered_runs([record | {"result": {"metrics": metrics}}], None)
    assert label == "run 3: house prices, 1 worker, r2 0.5000, running"
    [(_, label)] = offered_runs([record | {"result": {}}], None)
    assert label == "run 3: house prices, 1 worker, running"
