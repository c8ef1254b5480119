"""What a notebook shows of the results."""

import tenfold

FIELDS = {"model": "mlp", "data": "digits", "limit": 100, "epochs": 2, "threads": 1}


def test_a_run_shows_its_result_and_epochs(tmp_path):
    run = tenfold.train(**FIELDS, runs=tmp_path, name="<b>bold</b>")
    run.tag("paper")
    view = run._repr_html_()
    assert "run 1: &lt;b&gt;bold&lt;/b&gt;, finished" in view
    assert "test accuracy" in view
    assert "s measured" in view
    assert "<td>2</td>" in view
    assert "paper" in view
    assert tenfold.open_run(runs=tmp_path)._repr_html_() == view


def test_a_cross_validation_shows_its_folds(tmp_path):
    view = tenfold.cross_validate(**FIELDS, folds=2, fold_mode="fused", runs=tmp_path)._repr_html_()
    assert "cross-validation 1: mlp-digits, 2 folds" in view
    assert "95% in" in view
    assert view.count("<td>finished</td>") == 2
    assert view.index("fold 1<") < view.index("fold 2<")
    assert "fold 3" not in view


def test_a_comparison_and_a_forecast_are_tables(tmp_path):
    comparison = tenfold.compare(**FIELDS, lr=[0.01, 0.02], runs=tmp_path)
    assert comparison._repr_html_().count("<tr>") == 3
