"""What a notebook shows of the results."""

import os
import socket

import pytest

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
