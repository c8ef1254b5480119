"""One idea has one name: no two public classes share theirs."""

import ast
from collections import defaultdict
from pathlib import Path

import tenfold

SOURCE = Path(tenfold.__file__).parent


def test_no_two_public_classes_have_the_same_name() -> None:
    places = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """Which pytest could not tell apart."""
    places = defaultdict(list)
    for path in Path(__file__).parent.rglob("test_*.py"):
        places[path.name].append(str(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
