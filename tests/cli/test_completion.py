"""What shells complete: verbs, options, members of families, fields and runs."""

from pathlib import Path

import pytest
from looped import looped
from typer.testing import CliRunner

from tenfold.cli import app


def completed(line: str, shell: str = "bash") -> str:
    """Return what a shell is offered after a line."""
    variables = {
        "_TENFOLD_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    return CliRunner().invoke(app, [], prog_name="tenfold", env=variables).stdout


@looped("shell", ["bash", "zsh", "fish"])
@looped(
    ("line", "offered"),
    [
        ("tenfold tr", "train"),
        ("tenfold train --strat", "--strategy"),
        ("tenfold train --strategy butt", "butterfly"),
        ("tenfold train --model m", "mlp"),
        ("tenfold train --set batch", "batch_size="),
        ("tenfold compare --strategy ring,butt", "ring,butterfly"),
        ("tenfold data get fash", "fashion-mnist"),
    ],
)
def test_names_are_completed(line: str, offered: str, shell: str) -> None:
    assert offered in completed(line, shell)


def test_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed("tenfold show ").strip() == ""
    from tenfold.experiment import Experiment
    from tenfold.runs import Store

    Store("runs").create(Experiment(name="first"), kind="train", metadata={})
    assert completed("tenfold show ").split() == ["last", "1"]
    assert "first" in completed("tenfold show ", "zsh")
    assert completed("tenfold show fi").split() == ["first"]
