"""Progress is shown where a person looks, and can be asked for or turned off anywhere."""

import io
import sys

import pytest
from rich.text import Text

import tenfold
from tenfold.reports import display as notebook
from tenfold.reports.display import is_watched

FIELDS = {"model": "mlp", "data": "digits", "limit": 100, "epochs": 2, "threads": 1}


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Handle:
    """Stands for the output of a cell."""

    shown = ()

    def update(self, html):
        self.shown.append(html)


@pytest.fixture
def cell(monkeypatch):
    """A notebook's kernel as far as a display needs it."""

    class Shell:
        kernel = object()

    class Display:
        HTML = staticmethod(lambda text: text)

        @staticmethod
        def display(html, display_id):
            assert display_id
            Handle.shown = [html]
            return Handle()

    class IPython:
        display = Display

        @staticmethod
        def get_ipython():
            return Shell()

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    monkeypatch.setitem(sys.modules, "IPython.display", Display)
    return Handle


def test_logs_are_quiet_and_terminals_are_not(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not is_watched()
    tenfold.train(**FIELDS, runs=tmp_path)
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert is_watched()


def test_it_can_be_asked_for_and_turned_off(tmp_path, capsys):
    tenfold.train(**FIELDS, runs=tmp_path, progress=True)
    assert [line[:9] for line in capsys.readouterr().err.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    tenfold.compare(**FIELDS, lr=[0.01], runs=tmp_path, progress=True)
    assert capsys.readouterr().err.startswith("1/1  ")
    tenfold.cross_validate(**FIELDS, folds=2, fold_mode="stacked", stacking="loop", runs=tmp_path, progress=True)
    assert "fold 2  validation accuracy" in capsys.readouterr().err


def test_a_notebook_has_one_output_that_is_replaced(cell, tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "REFRESH_SECONDS", 60)
    assert notebook.in_notebook()
    assert is_watched()
    tenfold.train(**FIELDS, runs=tmp_path)
    last = cell.shown[-1]
    assert last.startswith("<pre ")
    assert "epoch 1/2" in last
    assert "epoch 2/2" in last
    assert "\x1b" not in last


def test_what_is_shown_as_html_is_escaped():
    assert "&lt;script&gt;" in notebook.as_html(Text("<script>"))
