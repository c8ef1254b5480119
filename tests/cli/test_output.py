"""Files that a result cannot be written to are refused before anything is trained or measured."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from looped import looped
from typer.testing import CliRunner

from tenfold import cli
from tenfold.cli import app, main
from tenfold.cli.options import check_report
from tenfold.machine import limits
from tenfold.reports.pages.page import save_page

HTML = "a report is written to a file that ends with .html or .htm, not to"


@looped(
    ("line", "sentence"),
    [
        ("train -o out.pdf", f"{HTML} out.pdf"),
        ("crossval -o out.pdf", f"{HTML} out.pdf"),
        ("simulate -o out.pdf", f"{HTML} out.pdf"),
        ("twin -o out.pdf", f"{HTML} out.pdf"),
        ("compare -o out.pdf --lr 0.1,0.2", f"{HTML} out.pdf"),
        ("compare --plot out.txt --target 0.9 --lr 0.1,0.2", "should end with .svg, .png or .pdf"),
        ("compare --plot out.svg --lr 0.1,0.2", "target"),
        ("recipe run dsmp-table-3 -o out", f"{HTML} out"),
        ("report -o out.csv", f"{HTML} out.csv"),
        ("plan --target 0.9 --report out.toml", f"{HTML} out.toml"),
        ("plan --target 0.9 -o out.html", "experiment"),
        ("calibrate -o .", ". is a folder; name a file in it"),
        ("train -o a.html/b.html", "a.html is not a folder"),
        (f"report -o {'a' * 300}.html", "File name too long"),
    ],
)
def test_it_is_refused_at_once(line: str, sentence: str) -> None:
    Path("a.html").touch()
    said = CliRunner().invoke(app, line.split())
    assert said.exit_code == 2
    assert sentence in said.stderr
    assert [path.name for path in Path.cwd().iterdir()] == ["a.html"]


def test_only_verbs_ask_for_an_ending_and_not_of_a_device(tmp_path: Path) -> None:
    check_report(Path("/dev/stdout"))
    assert save_page("<p>", tmp_path / "page").read_text() == "<p>"


def test_a_folder_that_is_gone_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getcwd", raising(FileNotFoundError()))
    assert "the current folder has been removed" in refused(tmp_path, monkeypatch, capsys)


def test_a_limit_on_open_files_should_be_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", raising(OSError(errno.EMFILE, "Too many open files")))
    monkeypatch.setattr(limits, "open_file_limit", lambda: 4096)
    assert "raise the limit with `ulimit -n 8192`" in refused(tmp_path, monkeypatch, capsys)


def raising(error: OSError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error that the command line ends with."""
    monkeypatch.setattr(sys, "argv", ["tenfold", "runs"])
    monkeypatch.setattr(sys, "stdout", (folder / "out").open("w"))
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    return capsys.readouterr().err
