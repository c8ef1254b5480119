import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from strangers import forget, install

from tenfold import registry
from tenfold.errors import DataError, ExperimentError
from tenfold.registry import Registry, suggest

FAMILIES = {name: family for name, family in vars(registry).items() if isinstance(family, Registry)}


@looped("family", FAMILIES)
def test_every_path_leads_to_a_member(family):
    members = [FAMILIES[family][name] for name in FAMILIES[family]]
    assert members
    assert len(set(map(id, members))) == len(members)


@looped("family", ["STRATEGIES", "OUTER", "COMPRESSIONS", "SOURCES"])
def test_members_that_know_their_name_are_listed_under_it(family):
    assert all(FAMILIES[family][name].name == name for name in FAMILIES[family])


def test_a_lazy_member_is_imported_once():
    functions = Registry("function", {"root": "math:sqrt", "wrong": "no_such_module:f"})
    assert list(functions) == ["root", "wrong"]
    assert functions["root"](9) == 3
    assert functions["root"] is functions["root"]
    with pytest.raises(ModuleNotFoundError):
        functions["wrong"]


BIRDS = Registry("bird", {"owl": 1, "hawk": 2, "robin": 3})


def test_members_are_found_by_name_and_listed_in_order():
    assert BIRDS["hawk"] == 2
    assert list(BIRDS) == ["owl", "hawk", "robin"]
    assert len(BIRDS) == 3
    assert "owl" in BIRDS
    assert "emu" not in BIRDS


@looped(
    ("name", "message"),
    [
        ("hakw", "'hawk'"),
        ("Robin", "'robin'"),
        ("xyzzy", "owl, hawk, robin"),
        ("", "owl, hawk, robin"),
        (3, "owl, hawk, robin"),
        (["owl"], "'owl'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_all(name, message):
    with pytest.raises(ExperimentError) as caught:
        BIRDS[name]
    assert message in str(caught.value)


def test_the_kind_of_error_can_be_chosen():
    with pytest.raises(DataError):
        Registry("bird", {}, error=DataError)["owl"]


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=20), st.lists(st.text(max_size=10), max_size=5))
def test_all_names_are_always_listed(name, known):
    answer = suggest(name, known)
    assert answer.endswith(f"known: {', '.join(known)}")
    assert answer.startswith(("did you mean '", "known: "))


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Return a function that installs a package with members of the family of birds."""
    yield lambda package, **names: install(tmp_path / package, monkeypatch, package, {"tenfold.birds": names})
    forget()


def test_packages_add_members(packages):
    packages("coast", gull="math:sqrt")
    birds = Registry("bird", {"owl": 1}, group="birds")
    assert list(birds) == ["owl", "gull"]
    assert birds["gull"](9) == 3


@looped("owner", ["tenfold", "coast"])
def test_a_name_that_is_taken_is_said_with_the_package_that_wanted_it(owner, packages):
    packages("harbor", gull="math:cos")
    packages("coast", gull="math:sin")
    birds = Registry("bird", {"gull": "math:tan"} if owner == "tenfold" else {}, group="birds")
    with pytest.warns(UserWarning, match="harbor") as warned:
        gull = birds["gull"]
    assert gull(0) == 0
    assert "math:cos" in "".join(str(warning.message) for warning in warned)


@looped("path", ["no_such_module:gull", "math:gull"])
def test_a_member_that_cannot_be_imported_is_said_with_its_package(path, packages):
    packages("coast", gull=path)
    with pytest.raises(DataError, match="coast") as caught:
        Registry("bird", {}, group="birds", error=DataError)["gull"]
    assert path in str(caught.value)
