"""Files that a result cannot be written to are refused before anything is trained or measured."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from looped import looped
from typer.testing import CliRunner

from tenfold.cli import app, main

HTML = "a report needs a file name that ends with .html or .htm, not"


@looped(
    ("line", "sentence"),
    [
        ("train -o out.pdf", f"{HTML} out.pdf"),
        ("crossval -o out.pdf", f"{HTML} out.pdf"),
        ("simulate -o out.pdf", f"{HTML} out.pdf"),
        ("twin -o out.pdf", f"{HTML} out.pdf"),
        ("compare -o out.pdf --lr 0.1,0.2", f"{HTML} out.pdf"),
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


def test_a_folder_that_is_gone_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getcwd", raising(FileNotFoundError()))
    assert "the current folder has been removed" in refused(tmp_path, monkeypatch, capsys)


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
