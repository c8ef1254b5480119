"""What a notebook shows of the results."""

import os
import socket

import pytest
import torch

import tenfold
from tenfold.runs.run import announced_board

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


def test_a_run_links_to_the_board_of_this_user_that_serves_its_folder(tmp_path):
    run = tenfold.train(**FIELDS, runs=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/?token=aBcDeFgHiJkLmNoPqR"
        with announced_board(tmp_path, address):
            assert f'href="{address.replace("/?", "/run/1?")}"' in run._repr_html_()
            file = next(path for path in tmp_path.iterdir() if path.is_file() and address in path.read_text("latin-1"))
            assert not file.stat().st_mode & 0o077
            file.chmod(0o644)  # somebody else could have written it
            assert "href" not in run._repr_html_()
            file.chmod(0o600)
            file.write_text(address.replace("127.0.0.1", "example.com"))
            assert "href" not in run._repr_html_()
            file.write_text(address)
        assert not file.exists()
        with announced_board(tmp_path, address):
            server.close()
            assert "href" not in run._repr_html_()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_only_read_has_no_link(tmp_path):
    tmp_path.chmod(0o500)
    with announced_board(tmp_path, "http://127.0.0.1:1/?token=aBcDeFgHiJkLmNoPqR"):
        assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o700)


def test_predictions_are_one_line(tmp_path):
    run = tenfold.train(**FIELDS, runs=tmp_path)
    text = repr(run.predictions)
    assert len(text) < 100
    assert "test" in text
    numbers = tenfold.train(model="mlp", data=(torch.randn(40, 2), torch.randn(40)), epochs=1, runs=tmp_path)
    assert "numbers" in repr(numbers.predictions)


def test_reports_are_written_by_functions(tmp_path):
    runs = [tenfold.train(**FIELDS, runs=tmp_path, seed=seed) for seed in (0, 1)]
    assert "run 1" in runs[0].report(tmp_path / "one.html").read_text()
    page = tenfold.report(runs, tmp_path / "both.html").read_text()
    assert "<html" in page
    assert tenfold.report(runs[0], tmp_path / "again.html").exists()
    assert tenfold.report(tenfold.compare(**FIELDS, lr=[0.01, 0.02], runs=tmp_path), tmp_path / "table.html").exists()
    for wrong, path in ((1, "one.html"), ([], "one.html"), (runs, "one.txt")):
        with pytest.raises(tenfold.TenfoldError, match=r"run|\.html"):
            tenfold.report(wrong, tmp_path / path)


def test_a_cross_validation_shows_its_folds(tmp_path):
    view = tenfold.cross_validate(**FIELDS, folds=2, fold_mode="stacked", runs=tmp_path)._repr_html_()
    assert "cross-validation 1: mlp-digits, 2 folds" in view
    assert "95% in" in view
    assert view.count("<td>finished</td>") == 2
    assert view.index("fold 1<") < view.index("fold 2<")
    assert "fold 3" not in view


def test_a_comparison_and_a_forecast_are_tables(tmp_path):
    comparison = tenfold.compare(**FIELDS, lr=[0.01, 0.02], runs=tmp_path)
    assert comparison._repr_html_().count("<tr>") == 3
