import pytest
from looped import looped

from tenfold import catalog
from tenfold.catalog import Registry

FAMILIES = {name: family for name, family in vars(catalog).items() if isinstance(family, Registry)}


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
