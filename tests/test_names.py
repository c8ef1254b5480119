"""One idea has one name: no two modules, public classes or registries share theirs."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import tenfold
from tenfold import cli

SOURCE = Path(tenfold.__file__).parent
REPEATED = {"__init__", "__main__", "base"}
"""Every room may have these."""
MOST_FILES = 16
"""In one folder; beyond that, newcomers do not see what belongs together."""
COMMANDS = ("cli/train/", "cli/predict_time/", "cli/runs/", "cli/model/", "cli/setup/")
"""A command's file is named after the command, whatever else has the name of what it does."""


def repeated(places: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names that stand in several places, with these places."""
    found = defaultdict(list)
    for name, place in places:
        found[name].append(place)
    return {name: where for name, where in found.items() if len(where) > 1}


def modules() -> dict[str, Path]:
    """Return all modules by their paths in the package."""
    return {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}


def test_no_two_modules_have_the_same_name() -> None:
    names = [(path.stem, place) for place, path in modules().items() if not place.startswith(COMMANDS)]
    assert repeated(one for one in names if one[0] not in REPEATED) == {}


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """Which pytest could not tell apart."""
    tests = Path(__file__).parent
    assert repeated((path.name, str(path.relative_to(tests))) for path in tests.rglob("test_*.py")) == {}


def test_no_two_verbs_have_the_same_name() -> None:
    names = [(path.stem, place) for place, path in modules().items() if place.startswith(COMMANDS)]
    assert repeated(one for one in names if one[0] not in REPEATED) == {}


def test_each_heading_of_the_help_has_its_own_folder_of_verbs() -> None:
    folders = [{path.split(".")[2] for path in paths} for paths in cli.COMMANDS.values()]
    assert sorted(f"cli/{name}/" for names in folders for name in names) == sorted(COMMANDS)


def test_no_two_public_classes_have_the_same_name() -> None:
    names = [
        (node.name, place)
        for place, path in modules().items()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert repeated(names) == {}


def test_a_registry_has_one_name_and_this_name_has_one_registry() -> None:
    defined, renamed = [], []
    for place, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.AnnAssign) or not ast.unparse(node.annotation).startswith("Registry["):
                continue
            name, value = ast.unparse(node.target), ast.unparse(node.value) if node.value else ""
            if not value.startswith("catalog."):
                defined.append((name, place))
            elif value != f"catalog.{name}":
                renamed.append((name, value))
    assert len(defined) > 10
    assert (repeated(defined), renamed) == ({}, [])


def test_no_room_is_crowded() -> None:
    files = Counter(str(Path(place).parent) for place in modules() if not place.endswith("__init__.py"))
    assert {room: count for room, count in files.items() if count > MOST_FILES} == {}
