"""Every command: what it prints, as JSON too, and that bad input is one sentence and exit code 2."""

import json
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from command_line import assert_one_sentence, tenfold_
from looped import looped

import tenfold
from tenfold.cli import app
from tenfold.cli.output import prefix
from tenfold.runs.events import EpochEnded, Event

SMALL = ("--model", "mlp", "--data", "digits", "--epochs", "2", "--threads", "1", "--set", "limit=200")
COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback]
DATA_VERBS = ["list", "get", "where"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a finished, a failed and an interrupted run."""
    runs = tmp_path_factory.mktemp("recorded")
    fields: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 200, "epochs": 2, "threads": 1, "runs": runs}
    tenfold.train(**fields)
    with pytest.raises(tenfold.TenfoldError):
        tenfold.train(**fields, lr=1e30, name="broken")

    def interrupt(event: Event) -> None:
        if isinstance(event, EpochEnded):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.train(**fields, name="stopped", listen=interrupt)
    return runs


class TestTrain:
    def test_it_shows_epochs_and_the_result(self) -> None:
        said = tenfold_("train", *SMALL)
        assert said.exit_code == 0
        lines = said.stderr.splitlines()
        assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]]
        assert "test accuracy" in said.stdout
        assert "`tenfold report 1` writes an HTML report" in said.stdout
        assert not {"\x1b", "\r"} & set(said.output)  # plain lines, where there is no terminal

    def test_json_is_all_there_is(self) -> None:
        said = tenfold_("train", *SMALL, "--json")
        result = json.loads(said.stdout)
        assert (result["status"], result["epochs"], result["experiment"]["model"]) == ("finished", 2, "mlp")
        assert result["metrics"]["accuracy"] == tenfold.open_run().accuracy
        assert said.stderr == ""

    def test_a_file_then_options_then_settings(self, tmp_path: Path) -> None:
        (tmp_path / "one.toml").write_text(
            'name = "mine"\n[model]\nname = "mlp"\n'
            '[data]\nname = "digits"\nlimit = 200\n[training]\nlr = 0.5\nseed = 1\n'
        )
        said = tenfold_("train", "one.toml", "--epochs", "3", "--lr", "0.2", "-s", "training.lr=0.1", "--json")
        experiment = json.loads(said.stdout)["experiment"]
        assert [experiment[key] for key in ("name", "epochs", "lr", "seed")] == ["mine", 3, 0.1, 1]


class TestCtrlC:
    def test_it_says_how_to_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("tenfold.training.Replica.step", stop)
        said = tenfold_("train", *SMALL)
        assert said.exit_code == 130
        assert "`tenfold resume 1` continues" in said.stderr
        assert tenfold.open_run().status == "interrupted"

    def test_before_a_run_is_recorded_there_is_nothing_to_go_on_with(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("tenfold.data.loading.load", stop)
        said = tenfold_("train", *SMALL)
        assert said.exit_code == 130
        assert "resume" not in said.stderr


class TestAboutRuns:
    def test_runs(self, recorded: Path) -> None:
        said = tenfold_("runs", "--runs", str(recorded))
        assert said.exit_code == 0
        for status in ("finished", "failed", "interrupted"):
            assert status in said.stdout
        listed = json.loads(tenfold_("runs", "--runs", str(recorded), "--json").stdout)
        assert [run["status"] for run in listed] == ["finished", "failed", "interrupted"]

    @pytest.mark.parametrize("reference", ["1", "2", "3", "broken", "stopped", "last", "3-stopped"])
    def test_show(self, recorded: Path, reference: str) -> None:
        said = tenfold_("show", reference, "--runs", str(recorded))
        assert said.exit_code == 0
        assert "\x1b" not in said.stdout
        shown = json.loads(tenfold_("show", reference, "--runs", str(recorded), "--json").stdout)
        run = tenfold.open_run(reference, runs=recorded)
        assert (shown["id"], shown["history"]) == (run.id, run.history)
        assert f"run {run.id}" in said.stdout
        assert run.status in said.stdout

    @pytest.mark.parametrize("references", [("1",), ("2",), ("3",), ("1", "2", "3"), ()], ids=str)
    def test_report_of_whatever_state(self, recorded: Path, references: tuple[str, ...], tmp_path: Path) -> None:
        said = tenfold_("report", *references, "--runs", str(recorded), "-o", "pages/page.html", "--json")
        assert said.exit_code == 0
        numbers = [int(reference) for reference in references] or [3]
        assert json.loads(said.stdout) == {"path": "pages/page.html", "runs": numbers}
        page = (tmp_path / "pages" / "page.html").read_text()
        assert page.lower().startswith("<!doctype html")
        assert "</html>" in page

    def test_a_report_shows_the_columns_that_are_asked_for(self, recorded: Path) -> None:
        words = ("report", "1", "3", "--runs", str(recorded), "--columns")
        assert tenfold_(*words, "train_accuracy, seconds_in_all").exit_code == 0
        page = Path("report.html").read_text()
        assert "train accuracy" in page
        assert "gain = Tslowest/Tn" not in page
        assert_one_sentence(tenfold_(*words, "acuracy"), "unknown column 'acuracy'; did you mean 'accuracy'?")
        alone = tenfold_("report", "1", "--runs", str(recorded), "--select")
        assert_one_sentence(alone, "--columns and --select need at least two runs")
        not_validated = tenfold_("report", "1", "3", "--runs", str(recorded), "--select")
        assert_one_sentence(not_validated, "validation")

    def test_resume(self, tmp_path: Path) -> None:
        def interrupt(event: Event) -> None:
            if isinstance(event, EpochEnded) and event.epoch == 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tenfold.train(model="mlp", data="digits", limit=200, epochs=3, threads=1, listen=interrupt)
        said = tenfold_("resume")
        assert said.exit_code == 0
        assert said.stderr.splitlines()[0] == "resumed at epoch 2 of 3"
        assert "test accuracy" in said.stdout
        assert tenfold.open_run().status == "finished"


class TestTheRest:
    def test_init_writes_what_train_reads(self, tmp_path: Path) -> None:
        said = tenfold_("init", "mine.toml", "--model", "mlp", "--data", "digits", "-s", "hidden=[8]", "-s", "epochs=1")
        assert said.exit_code == 0
        assert "tenfold train mine.toml" in said.stdout
        assert tenfold.Experiment.load("mine.toml") == tenfold.Experiment(
            model="mlp", data="digits", hidden=[8], epochs=1
        )
        assert tenfold_("train", "mine.toml", "--set", "limit=100").exit_code == 0

    def test_init_replaces_only_when_told_to(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text("mine")
        assert tenfold_("init", "mine.toml").exit_code == 2
        assert (tmp_path / "mine.toml").read_text() == "mine"
        assert tenfold_("init", "mine.toml", "--force").exit_code == 0
        assert tenfold.Experiment.load("mine.toml") == tenfold.Experiment()

    def test_doctor(self) -> None:
        said = tenfold_("doctor")
        assert said.exit_code == 0
        found = json.loads(tenfold_("doctor", "--json").stdout)
        assert {"data: digits", "data: mnist"} <= {finding["topic"] for finding in found}

    def test_data(self) -> None:
        assert "digits" in tenfold_("data", "list").stdout
        listed = json.loads(tenfold_("data", "list", "--json").stdout)
        assert [entry["name"] for entry in listed][:3] == ["digits", "mnist", "fashion-mnist"]
        assert json.loads(tenfold_("data", "get", "digits", "--json").stdout) == {"name": "digits", "where": None}
        assert json.loads(tenfold_("data", "where", "digits", "--json").stdout) == {"name": "digits", "where": None}

    def test_version(self) -> None:
        said = tenfold_("--version")
        assert (said.exit_code, said.stdout.strip()) == (0, tenfold.__version__)


class TestHelp:
    def test_it_lists_the_verbs_and_shows_examples(self) -> None:
        said = tenfold_("--help")
        assert {"train", "resume", "runs", "show", "report", "init", "schema", "doctor"} <= set(COMMANDS)
        assert all(command in said.stdout for command in COMMANDS)
        assert "Examples:" in said.stdout

    @looped("command", [(command,) for command in COMMANDS] + [("data", command) for command in DATA_VERBS])
    def test_each_verb_has_an_example(self, command: tuple[str, ...]) -> None:
        said = tenfold_(*command, "--help")
        assert said.exit_code == 0
        examples = unstyle(said.stdout).split("Example", 1)[1]
        assert f"tenfold {' '.join(command)}" in " ".join(examples.split())


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no run": (("show",), "no runs"),
    "no such file": (("train", "nothing.toml"), "tenfold init nothing.toml"),
    "not TOML": (("train", "bad.toml"), "TOML"),
    "not text": (("train", "binary.toml"), "text"),
    "unknown field in a file": (("train", "field.toml"), "field.toml: training.learning_rate"),
    "unknown field": (("train", "--set", "learning_rate=0.1"), "training.lr"),
    "setting without =": (("train", "--set", "lr"), "lr=0.1"),
    "no such module": (("train", *SMALL, "--model", "nowhere:net"), "nowhere"),
    "too many threads": (("train", *SMALL, "--threads", "4096"), "cores"),
    "no such device": (("train", *SMALL, "--device", "abacus"), "abacus"),
    "a long name": (("init", "x" * 300), "File name too long"),
    "a long name of a file": (("train", "x" * 300), "File name too long"),
    "option of another model": (("train", *SMALL, "--model", "lenet5", "-s", "hidden=[8]"), "hidden"),
    "init over a file": (("init", "bad.toml"), "--force"),
    "init where none can write": (("init", "/proc/mine.toml"), "/proc/mine.toml"),
    "no workers to simulate": (("simulate", "--workers", "[]"), "at least one"),
    "unknown data set": (("data", "get", "minst"), "mnist"),
    "data that are not here": (("data", "where", "mnist"), "tenfold data get mnist"),
}


class TestBadInput:
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        (tmp_path / "bad.toml").write_text("this is = = not toml")
        (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00\x80")
        (tmp_path / "field.toml").write_text("[training]\nlearning_rate = 0.1\n")

    @looped("case", BAD)
    def test_it_is_one_sentence(self, case: str) -> None:
        arguments, expected = BAD[case]
        assert_one_sentence(tenfold_(*arguments), expected)

    @pytest.mark.parametrize("command", ["show", "resume", "report"])
    def test_unknown_runs(self, recorded: Path, command: str) -> None:
        said = tenfold_(command, "17", "--runs", str(recorded))
        assert_one_sentence(said, f"there is no run '17' in {recorded}; use a number from 1 to 3, or last")

    @pytest.mark.parametrize("rank", ["2", "x"])
    def test_variables_that_no_launcher_sets(self, rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert_one_sentence(tenfold_("train", *SMALL), "environment")
        assert_one_sentence(tenfold_("show", "999"), "there are no runs in runs")
        assert prefix() == ""

    def test_a_store_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "tenfold.db").write_text("something else altogether, and long enough to look at" * 20)
        said = tenfold_("runs", "--runs", str(tmp_path))
        assert_one_sentence(said, "tenfold.db cannot be opened: file is not a database")

    def test_several_mistakes_are_told_at_once(self) -> None:
        said = tenfold_("train", "--set", "lr=-1", "--set", "epochs=0")
        assert said.exit_code == 2
        assert [line.split(" = ")[0] for line in said.stderr.splitlines()] == [
            "error: training.epochs",
            "error: training.lr",
        ]

    @looped(
        ("arguments", "expected"),
        [
            (("train", "--epochs", "many"), "epochs"),
            (("train", "--lr", "fast"), "--lr: should be a number"),
            (("train", "a", "b"), "unexpected"),
            (("resume", "--set", "epochs=3"), "settings"),
            (("train", "--folds", "5"), "validates"),
            (("trian",), "train"),
            (("--nothing",), "tenfold"),
            (("train", "--epoch", "3"), "--epochs"),
            (("train", "--limit", "9"), "experiments"),
            (("train", "--epochs"), "argument"),
            (("data", "get"), "name"),
            (("compare", "--format", "xml"), "xml"),
            (("launch", "x.toml", "--port", "0"), "greater"),
        ],
    )
    def test_what_the_parser_refuses(self, arguments: tuple[str, ...], expected: str) -> None:
        assert_one_sentence(tenfold_(*arguments), expected)

    def test_a_failing_run(self) -> None:
        said = tenfold_("train", *SMALL, "--lr", "1e30")
        assert said.exit_code == 2
        assert said.stderr.splitlines()[-1].startswith("error: the loss became ")
        assert "Traceback" not in said.output

    def test_json_is_json_whatever_was_measured(self, tmp_path: Path) -> None:
        (tmp_path / "cli_metrics.py").write_text(
            "import torch\ndef odd(o, t):\n    return torch.tensor(float('nan'))\n"
        )
        said = tenfold_("train", *SMALL, "--json", "--set", 'metrics=["cli_metrics:odd"]')

        def refuse(constant: str) -> None:
            raise ValueError(constant)

        assert json.loads(said.stdout, parse_constant=refuse)
