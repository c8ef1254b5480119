"""Stores and files of somebody else: nothing that they name is imported or called unless the user says so."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from board_client import BoardClient
from command_line import assert_one_sentence, tenfold_
from forked import forked_python
from looped import looped
from made_store import train_interrupted_and_finished

import tenfold
from tenfold.board.security import Access
from tenfold.board.server import Board
from tenfold.common.files import read_sealed, sealed_json
from tenfold.errors import TenfoldError
from tenfold.executors import slurm
from tenfold.experiment import Experiment
from tenfold.papers import load as load_recipe
from tenfold.papers import run as run_recipe
from tenfold.runs import Store

SMALL: dict[str, Any] = {"model": "mlp", "hidden": [4], "data": "digits", "limit": 40, "epochs": 2, "threads": 1}
PLANTED = """
from pathlib import Path

Path({marker!r}).touch()
import torch
from torch.nn.functional import cross_entropy

def network(outputs=10):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs))

def data():
    return torch.rand(40, 64), torch.arange(40) % 10

def anything(*args, **options):
    Path({marker!r}).touch()
    return cross_entropy(*args)
"""
FIELDS = {
    "model": ("model", "name"),
    "data": ("data", "name"),
    "collate": ("data", "collate"),
    "groups": ("data", "groups"),
    "loss": ("training", "loss"),
    "metrics": ("training", "metrics"),
    "optimizer": ("training", "optimizer"),
    "schedule": ("training", "schedule"),
    "strategy": ("parallel", "strategy"),
    "outer": ("parallel", "outer"),
    "compression": ("parallel", "compression"),
    "engine": ("machine", "engine"),
    "transport": ("machine", "transport"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with a run that was interrupted and one that finished."""
    return train_interrupted_and_finished(tmp_path_factory.mktemp("made") / "runs", **SMALL)


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _in_a_folder_of_its_own: None) -> Path:
    """The folder of somebody else: a store, a module beside it, and a list of named imports that is empty."""
    shutil.copytree(made, tmp_path / "runs")
    monkeypatch.setenv("TENFOLD_NAMED_IMPORTS", str(tmp_path / "mine" / "named.jsonl"))
    return tmp_path


def plant(folder: Path, name: str) -> Path:
    """Write a module, and return the file that it makes where any of it runs."""
    marker = folder / f"{name}-ran"
    (folder / f"{name}.py").write_text(PLANTED.format(marker=str(marker)))
    return marker


def record(folder: Path, field: str, value: Any, **options: Any) -> None:
    """Change a field in the records of both runs."""
    section, name = FIELDS[field]
    connection = sqlite3.connect(folder / "runs" / "tenfold.db")
    with connection:
        (text,) = connection.execute("SELECT experiment FROM runs WHERE id = 2").fetchone()
        experiment = read_sealed(text)
        experiment[section][name] = [value] if field == "metrics" else value
        experiment["model"]["hidden"] = None if field == "model" else [4]
        if options:
            experiment[section]["options"] = options
        connection.execute("UPDATE runs SET experiment = ?", (sealed_json(experiment),))
    connection.close()


def write_samples(folder: Path) -> None:
    import numpy as np

    np.save(folder / "x.npy", np.zeros((2, 64), dtype=np.float32))


@looped("field", FIELDS)
def test_a_record_of_somebody_else_runs_nothing(folder: Path, made: Path, field: str) -> None:
    shutil.rmtree(folder / "runs")
    shutil.copytree(made, folder / "runs")
    name = f"planted_{field}"
    marker = plant(folder, name)
    record(folder, field, f"{name}:anything")
    write_samples(folder)
    exporting = [("export", "2", "-f", "torch")] if field == "model" else []
    for command in (("predict", "2", "x.npy"), ("evaluate", "2"), ("resume", "1"), *exporting):
        said = tenfold_(*command)
        assert not marker.exists(), command
        assert name not in sys.modules
        if command[0] == "resume" or field == "model" or (command[0] == "evaluate" and field not in UNUSED):
            assert_one_sentence(said, f"{name}:anything")
            assert "--trust" in said.stderr
    assert str(folder) not in sys.path


def test_what_only_shows_a_record_needs_no_trust(folder: Path) -> None:
    marker = plant(folder, "planted_shown")
    for field in FIELDS:
        record(folder, field, "planted_shown:anything")
    for command in (("runs",), ("show", "2"), ("report", "1", "2", "-o", "page.html"), ("export", "2"), ("doctor",)):
        assert tenfold_(*command).exit_code in (0, 1)  # 1: the doctor found something
    board = Board(Store(folder / "runs"), Access())
    client = BoardClient(board.app(), base_url="http://127.0.0.1:8642")
    assert client.get("/", params={"token": board.access.token}).status_code == 200
    for page in ("/run/2", "/data/run/2", "/data/run/2/rest", "/compare?runs=1,2", "/run/2.json", "/run/2.html"):
        assert client.get(page).status_code == 200
    assert not marker.exists()


UNUSED = ("optimizer", "schedule", "strategy", "outer", "compression", "engine", "transport")
"""Fields that an evaluation does not need."""


def test_a_call_with_options_of_a_record_is_not_made(folder: Path) -> None:
    record(folder, "model", "os:system", command=f"touch {folder / 'OWNED'}")
    write_samples(folder)
    assert_one_sentence(tenfold_("predict", "2", "x.npy"), "os:system")
    run = tenfold.open_run(2)
    for use in (lambda: run.model, lambda: run.evaluate(), lambda: tenfold.train(run.experiment, epochs=1)):
        with pytest.raises(TenfoldError, match="os:system"):
            use()
    assert not (folder / "OWNED").exists()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with a sweep of two trials."""
    runs = tmp_path_factory.mktemp("swept") / "runs"
    tenfold.sweep(**SMALL, lr=[0.1, 0.2], sampler="grid", trials=2, runs=runs, progress=False)
    return runs


@looped("place", ["trial", "space", "sweep"])
def test_the_best_experiment_of_a_sweep_of_somebody_else_runs_nothing(folder: Path, swept: Path, place: str) -> None:
    """Neither by what the best trial names, nor by fields that the sweep pretends to have varied."""
    shutil.rmtree(folder / "runs")
    shutil.copytree(swept, folder / "runs")
    marker = plant(folder, f"planted_{place}")
    os_system = {"name": "os:system", "options": {"command": f"touch {folder / 'OWNED'}"}, "hidden": None}
    connection = sqlite3.connect(folder / "runs" / "tenfold.db")
    with connection:
        for number, kind, text, facts in connection.execute("SELECT id, kind, experiment, metadata FROM runs"):
            experiment, metadata = read_sealed(text), read_sealed(facts)
            if kind == "sweep" and place != "sweep":
                varied = {"model": "[]", "model_options": "[]", "hidden": "[]", "loss": "[]"}
                metadata["sweep"]["space"] = varied if place == "space" else {"loss": "[]"}
            if (kind == "sweep") == (place == "sweep"):
                experiment["training"]["loss"] = f"planted_{place}:anything"
                experiment["model"] |= os_system if place == "space" else {}
            row = (sealed_json(experiment), sealed_json(metadata), number)
            connection.execute("UPDATE runs SET experiment = ?, metadata = ? WHERE id = ?", row)
    connection.close()
    assert_one_sentence(tenfold_("train", "--from-sweep", "last", "--quiet"), "--trust")
    with pytest.raises(TenfoldError, match="importing it runs code"):
        tenfold.train(tenfold.Sweep(tenfold.open_run("1")).best_experiment, runs="mine")
    assert not marker.exists()
    assert not (folder / "OWNED").exists()
    assert not Path(os.environ["TENFOLD_NAMED_IMPORTS"]).exists()
    if place != "space":
        overruled = tenfold_("train", "--from-sweep", "1", "--set", "loss=cross-entropy", "--quiet")
        assert overruled.exit_code == 0
        assert not marker.exists()
        assert tenfold_("train", "--from-sweep", "1", "--trust", "--quiet").exit_code == 0
        assert marker.exists()


def test_a_sweep_with_a_damaged_record_is_named_in_a_sentence(folder: Path, swept: Path) -> None:
    shutil.rmtree(folder / "runs")
    shutil.copytree(swept, folder / "runs")
    connection = sqlite3.connect(folder / "runs" / "tenfold.db")
    for details in ({"space": {"name": "x"}}, {"space": {"no such field": "x"}}, {"space": []}, {"objective": 1}):
        with connection:
            change = "UPDATE runs SET metadata = json_patch(metadata, ?) WHERE id = 1"
            connection.execute(change, (json.dumps({"sweep": details}),))
        assert_one_sentence(tenfold_("train", "--from-sweep", "1", "--quiet"), "run 1")
    connection.close()


def test_the_packages_of_a_recorded_module_are_not_imported_to_find_it(folder: Path) -> None:
    marker = plant(folder, "planted_package")
    (folder / "planted_package").mkdir()
    (folder / "planted_package.py").rename(folder / "planted_package" / "__init__.py")
    (folder / "planted_package" / "inner.py").write_text("def network(): ...")
    record(folder, "loss", "planted_package.inner:network")
    assert tenfold_("resume", "1").exit_code == 2
    assert tenfold_("evaluate", "2").exit_code == 2
    assert not marker.exists()


def test_trust_runs_it_and_so_does_giving_it_again(folder: Path) -> None:
    marker = plant(folder, "planted_trusted")
    record(folder, "loss", "planted_trusted:anything")
    assert tenfold_("evaluate", "2", "--trust").exit_code == 0
    assert marker.exists()
    with pytest.raises(TenfoldError, match="planted_trusted"):  # trust holds for one command
        tenfold.open_run(2).evaluate()
    assert tenfold.open_run(2).evaluate(loss="planted_trusted:anything")["loss"] > 0
    assert tenfold.resume(1, loss="planted_trusted:anything").status == "finished"
    assert tenfold.open_run(2, trust=True).evaluate()["loss"] > 0


def test_what_this_user_has_named_is_imported_without_trust(folder: Path) -> None:
    plant(folder, "planted_own")
    tenfold.train(**SMALL | {"model": "planted_own:network", "hidden": None}, loss="planted_own:anything", runs="mine")
    assert tenfold.open_run("last", runs="mine").evaluate()["loss"] > 0
    listed = Path(os.environ["TENFOLD_NAMED_IMPORTS"])
    assert listed.stat().st_mode & 0o077 == 0
    lines = [json.loads(line) for line in listed.read_text().splitlines() if line]
    assert ["planted_own:network", str(folder / "planted_own.py")] in lines
    tenfold.train(tenfold.open_run("last", runs="mine").experiment, runs="mine")
    assert len([line for line in listed.read_text().splitlines() if line]) == len(lines)


LOOK = """
import sys
from tenfold.common.imports import Origin, RecordedPath, check_trusted
try:
    check_trusted(RecordedPath(sys.argv[1], Origin("run 1")), "model")
    print("trusted")
except Exception as error:
    print(error)
"""


def in_another_program(path: str) -> str:
    """Return what a program that has named nothing itself says of an import path."""
    command = [sys.executable, "-P", "-c", LOOK, path]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return said.stdout.strip()


def test_a_module_of_the_same_name_in_another_folder_is_not_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(folder, "planted_name")
    tenfold.train(**SMALL | {"model": "planted_name:network", "hidden": None}, runs="mine")
    assert in_another_program("planted_name:network") == "trusted"
    assert "importing it runs code" in in_another_program("planted_name:data")
    other = folder / "other"
    other.mkdir()
    (other / "planted_name.py").symlink_to(folder / "planted_name.py")
    monkeypatch.chdir(other)
    assert str(other / "planted_name.py") in in_another_program("planted_name:network")


def test_a_list_that_others_could_have_written_is_ignored(folder: Path) -> None:
    plant(folder, "planted_listed")
    tenfold.train(**SMALL | {"model": "planted_listed:network", "hidden": None}, runs="mine")
    listed = Path(os.environ["TENFOLD_NAMED_IMPORTS"])
    for mode in (0o620, 0o602):
        listed.chmod(mode)
        assert "importing it runs code" in in_another_program("planted_listed:network")
    listed.chmod(0o600)
    with listed.open("ab") as file:
        file.write(b'["cut')
    assert in_another_program("planted_listed:network") == "trusted"


def test_classes_of_torch_need_no_trust(folder: Path) -> None:
    for field, value in (("loss", "torch.nn:CrossEntropyLoss"), ("optimizer", "torch.optim:NAdam")):
        record(folder, field, value)
    assert tenfold.open_run(2).evaluate()["loss"] > 0
    assert tenfold.train(tenfold.open_run(2).experiment, runs="mine").status == "finished"
    for path in (
        "torch.nn.functional:importlib.import_module",
        "torch.nn:modules.module.warnings.sys.exit",
        "torch.nn.modules.module:register_module_forward_hook",  # it would be called for every network
        "torch.nn.functional:boolean_dispatch",
    ):
        record(folder, "loss", path)
        with pytest.raises(TenfoldError, match="importing it runs code"):
            tenfold.open_run(2).evaluate()


@looped(
    ["name", "options"],
    [
        ("torch.nn:Linear", {"in_features": 10**6, "out_features": 10**6}),
        ("torch.nn:Embedding", {"num_embeddings": 10**12, "embedding_dim": 4}),
        ("torch.nn:Linear", {"in_features": -4, "out_features": 4}),
        ("torch.nn:ModuleList", {"modules": [1, 2]}),
    ],
)
def test_a_layer_of_torch_that_cannot_be_made_is_refused(folder: Path, name: str, options: dict[str, Any]) -> None:
    record(folder, "model", name, **options)
    write_samples(folder)
    assert_one_sentence(tenfold_("predict", "2", "x.npy"), "run 2")


def test_a_loss_of_torch_that_needs_arguments_is_refused(folder: Path) -> None:
    record(folder, "loss", "torch.nn:Linear")
    assert_one_sentence(tenfold_("evaluate", "2"), "arguments")


USES = (
    *(tenfold.train, tenfold.cross_validate, tenfold.compare, tenfold.simulate, tenfold.twin, tenfold.forecast),
    *(tenfold.calibrate, lambda experiment: tenfold.plan(experiment, target=0.9)),
)


def test_an_experiment_file_may_name_code_of_the_folder_but_not_installed_code(folder: Path) -> None:
    marker = plant(folder, "planted_beside")
    Experiment(**SMALL | {"model": "planted_beside:network", "hidden": None}).save("own.toml")
    assert tenfold_("train", "own.toml", "--quiet").exit_code == 0
    assert marker.exists()
    fields = {"model_options": {"command": f"touch {folder / 'OWNED'}"}}
    Experiment(**SMALL | {"model": "os:system", "hidden": None} | fields).save("theirs.toml")
    assert_one_sentence(tenfold_("train", "theirs.toml"), "theirs.toml names model 'os:system'")
    for use in USES:
        with pytest.raises(TenfoldError, match="names model 'os:system'"):
            use(Experiment.load("theirs.toml"))
    assert not (folder / "OWNED").exists()
    Experiment(**SMALL | {"loss": "sklearn.metrics:log_loss"}).save("named.toml")
    assert "sklearn" in tenfold_("train", "named.toml").stderr
    changed = Experiment.load("named.toml", loss="torch.nn:CrossEntropyLoss")
    assert tenfold.train(changed).status == "finished"


def test_the_experiment_file_in_a_store_is_a_record(folder: Path) -> None:
    marker = plant(folder, "planted_file")
    file = folder / "runs" / "2-mlp-digits" / "experiment.toml"
    Experiment(**SMALL | {"model": "planted_file:network", "hidden": None}).save(file)
    assert_one_sentence(tenfold_("train", str(file)), "planted_file:network")
    assert not marker.exists()
    assert tenfold_("train", str(file), "--model", "planted_file:network", "--quiet").exit_code == 0


RECIPE = """
name = "theirs"
title = "theirs"
[paper]
key = "theirs"
citation = "theirs"
place = "here"
[experiment]
model = "mlp"
data = "digits"
limit = 40
epochs = 1
threads = 1
[[blocks]]
{block}
[scales.small]
{scale}
"""


@looped(
    ("block", "scale"),
    [
        ('fields = {loss = "planted_recipe:anything"}', ""),
        ('vary = {loss = ["planted_recipe:anything"]}', ""),
        ('together = [{loss = "planted_recipe:anything", seed = 1}]', ""),
        ('vary = {loss = ["mse"]}', 'vary = {loss = ["planted_recipe:anything"]}'),
        ('verb = "forecast"', 'fields = {model = "planted_recipe:network"}'),
        ('verb = "simulate"', 'fields = {metrics = ["planted_recipe:anything"]}'),
    ],
)
def test_a_recipe_of_somebody_else_runs_nothing(folder: Path, block: str, scale: str) -> None:
    marker = plant(folder, "planted_recipe")
    Path("theirs.toml").write_text(RECIPE.format(block=block, scale=scale))
    assert tenfold_("recipe", "show", "theirs.toml").exit_code == 0
    assert_one_sentence(tenfold_("recipe", "run", "theirs.toml", "--runs", "new"), "planted_recipe")
    assert not marker.exists()
    assert not Path("new").exists()


def test_a_trusted_recipe_runs(folder: Path) -> None:
    marker = plant(folder, "planted_good_recipe")
    Path("theirs.toml").write_text(RECIPE.format(block='fields = {loss = "planted_good_recipe:anything"}', scale=""))
    with pytest.raises(TenfoldError, match="planted_good_recipe"):
        run_recipe(load_recipe("theirs.toml"))
    assert run_recipe("theirs.toml", trust=True).complete
    assert marker.exists()
    assert not Path(os.environ["TENFOLD_NAMED_IMPORTS"]).exists()  # trust holds for once


def test_files_in_the_current_folder_do_not_hide_installed_modules(folder: Path) -> None:
    """Where the module that is wanted is somewhere else."""
    marker = plant(folder, "tomli_w")
    record(folder, "loss", "torch.nn:CrossEntropyLoss")
    tenfold.open_run(2).evaluate()
    import tomli_w

    assert str(folder) not in str(tomli_w.__file__)
    assert not marker.exists()


@looped("name", ("cython", "torch"))
def test_a_harmless_name_in_a_record_opens_the_current_folder_to_no_other_module(folder: Path, name: str) -> None:
    """Libraries look for modules that are not installed, as SciPy does for cython."""
    plant(folder, name)
    record(folder, "loss", "torch.nn:CrossEntropyLoss")
    tenfold.open_run(2).evaluate()
    assert str(folder) not in sys.path


SERVER = """
import os
from tenfold.workers import fork_server
fork_server.PRELOADED = "json"
if __name__ == "__main__":
    fork_server.start_server()
    process = fork_server.context().Process(target=os.getpid)
    process.start()
    process.join()
    print(process.exitcode)
"""


def test_processes_import_nothing_from_the_current_folder(folder: Path) -> None:
    """Neither the server of workers nor a `tenfold` that the board starts."""
    from tenfold.common.imports import tenfold_command

    markers = [plant(folder, name) for name in ("socket", "typer", "torch")]
    said = subprocess.run([sys.executable, "-P", "-c", SERVER], capture_output=True, text=True, timeout=60)
    assert said.stdout == "0\n", said.stderr
    said = subprocess.run([*tenfold_command("--version")], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert not any(marker.exists() for marker in markers)


def test_the_doctor_imports_nothing_from_the_current_folder(folder: Path) -> None:
    marker = plant(folder, "mpi4py")
    assert tenfold_("doctor").exit_code in (0, 1)
    assert not marker.exists()


def test_a_job_of_slurm_imports_nothing_from_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(program: str, *_: str, script: str = "") -> str:
        if program == "sbatch":
            environment = os.environ | {"SLURM_ARRAY_TASK_ID": "0"}
            subprocess.run(["sh"], input=script, env=environment, text=True, timeout=100, check=True)
        return "7" if program == "sbatch" else ""

    monkeypatch.setattr(slurm, "command", command)
    marker = plant(folder, "typer")
    plant(folder, "torch")
    comparison = tenfold.compare(**SMALL, lr=[0.1], on="slurm", runs="mine")
    assert [run.status for run in comparison.runs] == ["finished"]
    assert not marker.exists()
    assert not (folder / "torch-ran").exists()


def test_the_version_of_the_code_is_noted_without_running_what_a_repository_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenfold.machine.metadata.COMMIT_SECONDS", 1e-6)
    (folder / "code.txt").write_text("one")
    (folder / ".gitattributes").write_text("* filter=planted\n")
    for command in (
        ["init", "-q"],
        ["add", "code.txt"],
        ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], check=True, timeout=60)
    marker = folder / "git-ran"
    for setting in ("core.fsmonitor", "filter.planted.clean", "diff.external"):
        subprocess.run(["git", "config", setting, f"touch {marker}; cat"], check=True, timeout=60)
    hook = folder / ".git" / "hooks" / "post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    (folder / "code.txt").write_text("two")
    assert tenfold.train(**SMALL, runs="mine").metadata["code"].endswith("?")
    subprocess.run(["git", "config", "--unset", "filter.planted.clean"], check=True, timeout=60)
    assert tenfold.train(**SMALL, runs="mine").metadata["code"].endswith("+")
    assert not marker.exists()


PROGRAM = """
import sys
import torch
import tenfold

class Net(torch.nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.layer = torch.nn.Linear(width, 2)

    def forward(self, x):
        return self.layer(x)

if sys.argv[1] == "train":
    data = torch.randn(40, 3), torch.arange(40) % 2
    tenfold.train(model=Net, data=data, epochs=1, name="class", progress=False)
    tenfold.train(model=lambda: Net(), data=data, epochs=1, name="function", progress=False)
    assert tenfold.open_run("function").model is not None
for run in sys.argv[2:]:
    if run == "other":
        del Net
        run = "class"
    try:
        print(tenfold.open_run(run).predict(torch.zeros(2, 3)).shape)
    except tenfold.TenfoldError as error:
        print("trust=True" in str(error))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runs", "width", "opened"),
    [(("class", "function", "other"), 3, "torch.Size([2])\nTrue\nTrue\n"), (("class",), 4, "True\n")],
)
def test_a_class_of_the_running_program_needs_no_trust(
    trained_by_a_program: Path, runs: tuple[str, ...], width: int, opened: str
) -> None:
    assert run_program(trained_by_a_program, "open", *runs, width=width) == opened


def run_program(folder: Path, *arguments: str, width: int = 3) -> str:
    (folder / "program.py").write_text(PROGRAM.replace("WIDTH", str(width)))
    command = [*forked_python(), str(folder / "program.py"), *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    return ended.stdout


@pytest.fixture(scope="module")
def trained_by_a_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    run_program(folder, "train")
    return folder


def test_names_are_imported_in_few_places() -> None:
    """Whoever adds a place decides whether the name can come from data: then `resolve` is the way."""
    source = Path(tenfold.__file__).parent
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if any(
            word in path.read_text() for word in ("import_module(", "__import__(", "exec(", "find_spec(", "run_path(")
        )
    }
    assert found == {
        "common/imports.py",  # checks what a record or a file names, and finds files
        "registry.py",  # the registry's own members
        "cli/__init__.py",  # the commands
        "machine/rank_guard.py",  # a function that the rank which starts the guard names
        "prediction/library_averaging.py",  # whether mpi4py is there
        *("prediction/script_rank.py", "prediction/script_simulation.py"),  # the script that this user simulates
        *("papers/run_recipe.py", "machine/doctor.py", "data/sources.py"),
    }
