"""What is imported when: nothing heavy for names and help, no torch to read runs, and to train only what is used."""

import json
import subprocess
import sys

import pytest

import tenfold

PACKAGES = ("cloudpickle", "jinja2", "matplotlib", "numpy", "pandas", "pooch", "pydantic", "requests")
PACKAGES += ("scipy", "sklearn", "sqlite3", "tenfold.transport", "torch", "torch._dynamo")
READING = [
    ["runs"],
    ["show", "last"],
    ["data", "list"],
    ["data", "where", "digits"],
    ["schema"],
    ["init", "experiment.toml"],
]
TRAIN = ["train", "--model", "mlp", "--data", "digits", "--epochs", "1", "--quiet"]
PROGRAM = """
import json, sys
imported = {}

def done(stage):
    imported[stage] = [name for name in %(packages)r if name in sys.modules]

def run(*words):
    from tenfold.cli import main
    sys.argv = ["tenfold", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
    done(" ".join(words))

import tenfold
done("import tenfold")
import tenfold.registry
done("registry")
run("--help")
tenfold.Experiment(model="mlp")
done("Experiment")
run("train", "--help")
for words in %(reading)r:
    run(*words)
import tenfold.workers.fork_server
done("server")
import torch
done("torch")
assert torch.distributed.is_backend_available("tenfold")
assert torch.distributed.Backend.default_device_backend_map["cpu"] == "gloo"
assert not any("_AfterImport" in str(finder) for finder in sys.meta_path)
run(*%(train)r)
print("imported:", json.dumps(imported), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return which packages are there after each stage of one program: what is imported only grows."""
    folder = tmp_path_factory.mktemp("startup")
    tenfold.train(model="mlp", data="digits", limit=40, epochs=1, runs=folder / "runs")
    program = PROGRAM % {"packages": PACKAGES, "reading": READING, "train": TRAIN}
    ended = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return {stage: set(names) for stage, names in json.loads(ended.stderr.rpartition("imported:")[2]).items()}


@pytest.mark.timeout(120)
def test_names_and_help_import_nothing_heavy(imported: dict[str, set[str]]) -> None:
    assert imported["import tenfold"] == imported["registry"] == imported["--help"] == set()
    assert imported["Experiment"] == imported["train --help"] == {"pydantic"}


@pytest.mark.timeout(120)
def test_reading_verbs_do_without_torch(imported: dict[str, set[str]]) -> None:
    for words in READING:
        assert imported[" ".join(words)] <= {"cloudpickle", "numpy", "pydantic", "sqlite3"}


@pytest.mark.timeout(120)
def test_what_starts_the_server_of_workers_leaves_importing_torch_to_it(imported: dict[str, set[str]]) -> None:
    assert "torch" not in imported["server"]


@pytest.mark.timeout(120)
def test_the_backend_is_registered_when_torch_is_imported_but_not_imported(imported: dict[str, set[str]]) -> None:
    assert "tenfold.transport" not in imported["torch"]


@pytest.mark.timeout(120)
def test_training_imports_only_what_it_uses(imported: dict[str, set[str]]) -> None:
    assert imported[" ".join(TRAIN)] <= {"cloudpickle", "numpy", "pydantic", "sqlite3", "tenfold.transport", "torch"}
