"""`tenfold compare` and commands beside it: what they print where, in which forms, and what they say to bad input."""

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import Result
from command_line import assert_one_sentence, tenfold_
from looped import looped

import tenfold
from tenfold.cli.compare import grid_of, several, varied
from tenfold.errors import ExperimentError

SMALL = ("--model", "mlp", "--data", "digits", "--epochs", "1", "--threads", "1", "-s", "limit=100", "-s", "hidden=[4]")


def compare(*arguments: str) -> Result:
    return tenfold_("compare", *arguments)


def test_a_line_for_each_run_and_a_table() -> None:
    said = compare(*SMALL, "--lr", "0.1,0.2", "--repeats", "2")
    assert said.exit_code == 0
    lines = said.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"{place}/4  lr {lr}, seed {seed}"
        for place, (seed, lr) in enumerate([(0, 0.1), (0, 0.2), (1, 0.1), (1, 0.2)], 1)
    ]
    assert all("measured, accuracy" in line for line in lines)
    assert "\x1b" not in said.output
    assert said.stdout.splitlines()[0].split() == ["workers", "lr", "time,", "ms", "gain", "%", "accuracy", "%"]
    assert "±" in said.stdout
    assert max(map(len, said.stdout.splitlines())) <= 120


def test_what_is_recorded_already_is_said() -> None:
    compare(*SMALL, "--lr", "0.1,0.2")
    said = compare(*SMALL, "--lr", "0.1,0.2,0.3")
    assert ["already recorded" in line for line in said.stderr.splitlines()] == [True, True, False]
    assert len(tenfold.list_runs()) == 3
    assert "already recorded" not in compare(*SMALL, "--lr", "0.1", "--fresh").stderr


def test_failures_are_said_and_do_not_stop_the_rest() -> None:
    said = compare(*SMALL, "--lr", "1e30,0.1")
    assert said.exit_code == 3
    assert compare(*SMALL, "--lr", "1e30,0.1", "--json").exit_code == 3
    assert said.stderr.splitlines()[0].startswith("1/2  lr 1e+30: failed: the loss became")
    assert "failed: lr 1e+30: the loss became" in " ".join(said.stdout.split())


def test_forms() -> None:
    arguments = (*SMALL, "--lr", "0.1,0.2", "--quiet")
    table = compare(*arguments).stdout
    read = json.loads(compare(*arguments, "--json").stdout)
    assert read == json.loads(compare(*arguments, "--format", "json").stdout)
    assert [row["lr"] for row in read["rows"]] == [0.1, 0.2]
    rows = list(csv.DictReader(io.StringIO(compare(*arguments, "--format", "csv").stdout)))
    assert [float(row["accuracy"]) for row in rows] == [row["accuracy"] for row in read["rows"]]
    lines = compare(*arguments, "--format", "markdown").stdout.splitlines()
    assert lines[1] == "|" + "---|" * (lines[0].count("|") - 1)
    assert table not in lines
    assert len(tenfold.list_runs()) == 2


def test_a_file_is_the_base(tmp_path: Path) -> None:
    tenfold.Experiment(model="mlp", data="digits", limit=100, epochs=1, hidden=[4], momentum=0.5).save("one.toml")
    said = compare("one.toml", "--lr", "0.1,0.2", "--json")
    assert len(json.loads(said.stdout)["rows"]) == 2
    assert [run.experiment.training.momentum for run in tenfold.list_runs()] == [0.5, 0.5]


def test_ctrl_c_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenfold.api.train import train_and_record

    def interrupted(*arguments: object, **fields: object) -> object:
        if len(tenfold.list_runs()) == 1:
            raise KeyboardInterrupt
        return train_and_record(*arguments, **fields)  # type: ignore[arg-type]

    compare(*SMALL, "--lr", "0.5")
    monkeypatch.setattr("tenfold.api.compare.train_and_record", interrupted)
    said = compare(*SMALL, "--lr", "0.1,0.2")
    assert said.exit_code == 130
    assert said.stderr.splitlines()[-1] == "interrupted; run the same command again to continue"
    assert said.stdout == ""


@looped(
    ("arguments", "sentence"),
    [
        (("--vary", "momentum"), "momentum=0"),
        (("--vary", "momentum="), "expected field=a,b"),
        (("--vary", "momentun=0,1"), "did you mean 'momentum'?"),
        (("--lr", "0.1,fast"), 'training.lr = "fast"'),
        (("--strategy", "ring,buterfly"), "did you mean 'butterfly'?"),
        (("--workers", "0,1"), "parallel.workers = 0"),
        (("--lr", "[]"), "compare"),
        (("--repeats", "0"), "repeats"),
        (("--lr", "1e30,1e31"), "none of the 2 runs could be done: the loss became"),
        (("nothing.toml",), "there is no file nothing.toml"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    assert_one_sentence(compare(*arguments, *SMALL, "--quiet"), sentence)


@looped(
    ("arguments", "sentence"),
    [
        (("scaling", "--workers", "4"), "--workers"),
        (("simulate", "script.py", "--workers", "2", "--set", "lr=0.1"), "lr is a field of experiments"),
        (("demo", "-o", "report.txt"), "report.txt"),
        (("demo", "--model", "tabulr"), "did you mean 'tabular'"),
        (("compare", "--lr", "1,2", "--on", "processes", "--mem", "4G"), "ray"),
    ],
)
def test_options_without_effect_are_refused(arguments: tuple[str, ...], sentence: str) -> None:
    Path("script.py").write_text("")
    assert_one_sentence(tenfold_(*arguments), sentence)
    assert not Path("runs").exists()


def test_the_last_sweep_is_meant_though_runs_came_after_it() -> None:
    tenfold_("sweep", *(SMALL[:6]), "-s", "limit=100", "--lr", "0.1,0.2", "--sampler", "grid")
    for _ in range(2):
        assert tenfold_("train", "--from-sweep", "last", "--quiet").exit_code == 0


@looped(
    ("text", "values"),
    [
        ("64", [64]),
        ("1,2,4", [1, 2, 4]),
        ("ring, butterfly", ["ring", "butterfly"]),
        ("[[1, 2], [3]]", [[1, 2], [3]]),
        ("1,2,4,...,16", [1, 2, 4, 8, 16]),
        ("1,2,...,20", [1, 2, 4, 8, 16, 20]),
        ("1,2,3,...,6", [1, 2, 3, 4, 5, 6]),
        ("2,4,6,...,10", [2, 4, 6, 8, 10]),
        ("1,3,9,...,81", [1, 3, 9, 27, 81]),
        ("4,8,...,8", [4, 8]),
        ("{latency = 0.01, bandwidth = 12e6}", [{"latency": 0.01, "bandwidth": 12e6}]),
    ],
)
def test_values_are_read_as_they_are_meant(text: str, values: list[object]) -> None:
    assert several(text) == values


@looped("text", ["1,...,8", "...,8", "1,2,...", "2,1,...,8", "a,b,...,c", "1,2,...,8,9", "1,9,...,4"])
def test_a_row_that_leads_nowhere_is_a_sentence(text: str) -> None:
    with pytest.raises(ExperimentError, match="sequence"):
        several(text)


def test_any_field_can_vary() -> None:
    assert varied("training.momentum=0,0.9") == ("momentum", [0, 0.9])
    assert varied("hidden=[[64],[32,16]]") == ("hidden", [[64], [32, 16]])
    for text in ("hidden=64,32", "hidden=[64,32]"):
        with pytest.raises(ExperimentError, match="hidden"):
            varied(text)
    with pytest.raises(ExperimentError, match="momentum=0"):
        varied("momentum")


def test_the_grid_is_made_of_options_and_variations() -> None:
    assert grid_of({"lr": "0.1,0.2", "workers": None}, ["momentum=0,0.9"], ["epochs=3"]) == {
        "lr": [0.1, 0.2],
        "momentum": [0, 0.9],
    }


@looped(
    ("vary", "settings"),
    [(["momentum=0", "training.momentum=0.9"], []), (["lr=1"], []), ([], ["lr=0.5"]), ([], ["training.lr=0.5"])],
)
def test_a_field_is_given_once(vary: list[str], settings: list[str]) -> None:
    with pytest.raises(ExperimentError, match="is given twice"):
        grid_of({"lr": "0.1"}, vary, settings)
