import json
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("name", EXPECTED)
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


def loaded_modules(code, *arguments):
    report = "import atexit, json, sys; atexit.register(lambda: print('\\n' + json.dumps(sorted(sys.modules))))\n"
    ran = subprocess.run(
        [sys.executable, "-c", report + code, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("import tenfold", []),
        ("from tenfold.cli import main; main()", ["--help"]),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code, arguments):
    modules = loaded_modules(code, *arguments)
    assert "tenfold" in modules
    assert not modules & set(HEAVY)


@pytest.mark.timeout(120)
def test_the_help_of_a_verb_needs_no_torch():
    modules = loaded_modules("from tenfold.cli import main; main()", "train", "--help")
    assert "tenfold.cli.running.train" in modules
    assert not modules & (set(HEAVY) - {"pydantic"})


@pytest.mark.timeout(120)
def test_an_experiment_is_made_without_torch():
    modules = loaded_modules("import tenfold; tenfold.Experiment(model='mlp')")
    assert "tenfold.experiment" in modules
    assert not modules & {"torch", "numpy", "matplotlib"}
