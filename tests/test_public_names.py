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
    "Sweep",
    "TenfoldError",
    "average",
    "calibrate",
    "compare",
    "cross_validate",
    "forecast",
    "list_runs",
    "open_run",
    "plan",
    "report",
    "resume",
    "scaling",
    "shard",
    "simulate",
    "sweep",
    "train",
    "twin",
    "whatif",
]


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
        match="CrossValidation",
    ):
        tenfold.trian  # noqa: B018
    assert not hasattr(tenfold, "trian")


def test_a_star_import_gives_them_all():
    names = {}
    exec("from tenfold import *", names)
    assert set(EXPECTED) <= set(names)
