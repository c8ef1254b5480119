"""`tenfold crossval` and what other verbs make of its runs."""

import json
from pathlib import Path

import pytest
from click import unstyle
from command_line import assert_one_sentence, tenfold_
from looped import looped

import tenfold
from tenfold.cli.output import PARTIAL

pytestmark = pytest.mark.timeout(120)
SMALL = ("--model", "mlp", "--data", "digits", "--epochs", "1", "--threads", "1", "--set", "limit=100")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("recorded")
    tenfold.cross_validate(model="mlp", data="digits", limit=100, epochs=1, threads=1, folds=3, runs=runs)
    return runs


def test_a_line_for_each_fold_then_the_tables() -> None:
    done = tenfold_("crossval", *SMALL, "--folds", "3")
    assert done.exit_code == 0
    assert unstyle(done.stderr).splitlines()[0] == "started: 3 folds, folds over workers"
    assert sum("validation accuracy" in line for line in unstyle(done.stderr).splitlines()) == 3
    told = unstyle(done.stdout)
    for words in (
        "fold 3",
        "mean",
        "deviation",
        "95% interval",
        "best model by validation, fold",
        "vote of all models",
    ):
        assert words in told
    assert "`tenfold report 1` writes an HTML report" in told


def test_json_is_all_there_is() -> None:
    done = tenfold_("crossval", *SMALL, "--folds", "2", "--fold-kind", "plain", "--json")
    assert not done.stderr
    told = json.loads(done.stdout)
    assert (told["kind"], told["mode"], len(told["folds"])) == ("crossval", "folds-over-workers", 2)
    assert told["experiment"]["fold_kind"] == "plain"


def test_runs_hide_folds_until_asked(recorded: Path) -> None:
    assert len(json.loads(tenfold_("runs", "--runs", str(recorded), "--json").stdout)) == 1
    assert "fold 1" not in tenfold_("runs", "--runs", str(recorded)).stdout
    every = unstyle(tenfold_("runs", "--folds", "--runs", str(recorded)).stdout)
    assert every.count("└ mlp-digits, fold") == 3


@looped(
    ("arguments", "sentence"),
    [
        (("--folds", "1"), "parallel.folds = 1:"),
        (("--folds", "200"), "parallel.folds"),
        (("--fold-mode", "staked"), "did you mean 'stacked'"),
        (("--fold-kind", "group"), 'parallel.fold_kind = "group" needs data.groups'),
        (("--set", "validation_fraction=0.2"), "data.validation_fraction"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    assert_one_sentence(tenfold_("crossval", *SMALL, *arguments), sentence)
    assert not Path("runs").exists()  # nothing is recorded


@pytest.fixture
def marked_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Options for data with one sample that the model fails to train on, so that two of three folds fail."""
    (tmp_path / "given_folds.py").write_text(
        "import torch\nfrom crossval_models import Touchy, marked\n\n\ndef data():\n    return marked()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "--model", "given_folds:Touchy", "--data", "given_folds:data", "--epochs", "1", "--threads", "1"


def test_a_lost_fold_is_a_partial_result(marked_data: tuple[str, ...]) -> None:
    for form in ((), ("--json",)):
        done = tenfold_("crossval", *marked_data, "--folds", "3", *form)
        assert done.exit_code == PARTIAL == 3
        assert "error: 2 of 3 folds failed; `tenfold resume " in unstyle(done.stderr)
    assert json.loads(done.stdout)["failed"]
    assert len(tenfold.CrossValidation(tenfold.open_run("last")).failed) == 2
    assert tenfold_("resume", "last", "--quiet").exit_code == PARTIAL
    done = tenfold_(
        "compare", *marked_data[4:], "--set", "model=given_folds:Touchy", "--data", "given_folds:data", "--folds", "2,3"
    )
    assert done.exit_code == PARTIAL
    assert "folds failed: " in unstyle(done.stderr)
