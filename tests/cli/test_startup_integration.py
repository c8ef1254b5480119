"""What a verb imports: reading verbs do without torch, and training does without what it does not use."""

import json
import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "pandas", "jinja2", "pooch", "requests")
TRAIN = ["train", "--model", "mlp", "--data", "digits", "--epochs", "1", "--quiet"]
READING = [
    ["--help"],
    ["runs"],
    ["show", "last"],
    ["data", "list"],
    ["data", "where", "digits"],
    ["schema"],
    ["init", "experiment.toml"],
]
PROGRAM = """
import json, sys
from tenfold.cli import main
found = {{}}
for verb in {verbs!r}:
    sys.argv = ["tenfold", *verb]
    try:
        main()
    except SystemExit as done:
        assert not done.code, (verb, done.code)
    found[" ".join(verb)] = [name for name in {heavy!r} if name in sys.modules]
import tenfold.workers.pool.fork_server
found["server"] = ["torch"] if "torch" in sys.modules else []
print("imported:", json.dumps(found), file=sys.stderr)
"""


def imported(verbs: list[list[str]], heavy: tuple[str, ...], folder: Path) -> dict[str, list[str]]:
    """Run verbs one after another in a new process, and return which heavy modules are there after each.

    "server": and after importing what starts the server of workers, which should import torch while this process does.
    """
    program = PROGRAM.format(verbs=verbs, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stderr.rpartition("imported:")[2]))


def test_nothing_is_imported_that_a_verb_does_not_need(tmp_path: Path) -> None:
    unneeded = ("torch._dynamo", *(name for name in HEAVY if name != "torch"))
    assert imported([TRAIN], unneeded, tmp_path)[" ".join(TRAIN)] == []
    assert imported(READING, HEAVY, tmp_path) == {"server": [], **{" ".join(verb): [] for verb in READING}}
