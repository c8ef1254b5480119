import json
import subprocess
import sys

import pytest
from looped import looped

import tenfold

EXPECTED = [
    "Callback",
    "Cluster",
    "CrossValidation",
    "Experiment",
    "Run",
    "StopTraining",
    "TenfoldError",
    "average",
    "calibrate",
    "compare",
    "cross_validate",
    "forecast",
    "list_runs",
    "open_run",
    "plan",
    "recipes",
    "recommend",
    "resume",
    "shard",
    "simulate",
    "train",
    "twin",
]
HEAVY = ("torch", "numpy", "pydantic", "matplotlib", "sklearn", "jinja2", "sqlite3", "cloudpickle")


def test_the_public_names_are_these_and_sorted():
    assert tenfold.__all__ == EXPECTED == sorted(EXPECTED)


def test_dir_shows_them_and_the_version():
    assert dir(tenfold) == sorted([*EXPECTED, "__version__"])
    assert tenfold.__version__


@looped("name", EXPECTED)
def test_every_name_is_there_and_explained(name):
    value = getattr(tenfold, name)
    assert value.__name__.removeprefix("tenfold.") == name
    assert value.__doc__
    assert getattr(value, "__module__", value.__name__).startswith("tenfold.")


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(
        AttributeError,
        match="module 'tenfold' has no attribute 'trian'; it has Callback, Cluster, CrossValidation, Experiment",
    ):
        tenfold.trian  # noqa: B018
    assert not hasattr(tenfold, "trian")


def test_a_star_import_gives_them_all():
    names = {}
    exec("from tenfold import *", names)
    assert set(EXPECTED) <= set(names)


STAGES = """
import json, sys
import tenfold
stages = {"import tenfold": sorted(sys.modules)}

def run(*words):
    from tenfold.cli import main
    sys.argv = ["tenfold", *words]
    try:
        main()
    except SystemExit:
        pass
    stages[" ".join(words)] = sorted(sys.modules)

run("--help")
tenfold.Experiment(model="mlp")
stages["Experiment"] = sorted(sys.modules)
run("train", "--help")
print("\\n" + json.dumps(stages))
"""


@pytest.mark.timeout(120)
def test_nothing_heavy_is_imported_before_it_is_needed():
    """In one process, as what is imported only grows."""
    ran = subprocess.run([sys.executable, "-c", STAGES], capture_output=True, text=True, timeout=60, check=True)
    stages = {stage: set(modules) for stage, modules in json.loads(ran.stdout.splitlines()[-1]).items()}
    assert "tenfold" in stages["import tenfold"]
    assert "tenfold.cli" in stages["--help"]
    assert "tenfold.experiment" in stages["Experiment"]
    assert "tenfold.cli.train.train" in stages["train --help"]
    found = {stage: modules & set(HEAVY) for stage, modules in stages.items()}
    needed = {"pydantic"}
    assert found == {"import tenfold": set(), "--help": set(), "Experiment": needed, "train --help": needed}
