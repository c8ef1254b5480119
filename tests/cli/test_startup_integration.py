"""What a verb imports: reading verbs do without torch, and training does without what it does not use."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "pandas", "jinja2", "pooch", "requests")
READING = {
    "help": ["--help"],
    "runs": ["runs"],
    "show": ["show", "last"],
    "data list": ["data", "list"],
    "data where": ["data", "where", "digits"],
    "schema": ["schema"],
    "init": ["init", "experiment.toml"],
}
PROGRAM = """
import sys
from tenfold.cli import main
sys.argv = ["tenfold", *{verb!r}]
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
print("imported:", *[name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


def imported(verb: list[str], heavy: tuple[str, ...], folder: object) -> list[str]:
    """Run a verb in a new process and return which of the heavy modules it imported."""
    program = PROGRAM.format(verb=verb, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", program], cwd=str(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr.rpartition("imported:")[2].split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A folder with one run, which was trained without what training does not need."""
    path = tmp_path_factory.mktemp("startup")
    train = ["train", "--model", "mlp", "--data", "digits", "--epochs", "1", "--quiet"]
    unneeded = ("torch._dynamo", *(name for name in HEAVY if name != "torch"))
    assert imported(train, unneeded, path) == []
    return path


@pytest.mark.parametrize("verb", READING.values(), ids=READING)
def test_reading_verbs_import_nothing_heavy(verb: list[str], folder: object) -> None:
    assert imported(verb, HEAVY, folder) == []
