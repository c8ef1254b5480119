"""The types of keyword arguments are those of the fields; mypy checks their use, in `make check`."""

import ast

from generate_fields import FILE, written


def test_the_generated_module_is_fresh():
    fresh, kept = (ast.dump(ast.parse(text)) for text in (written(), FILE.read_text()))
    assert fresh == kept, "experiment/field_types.py is stale: run `python tools/generate_fields.py`"
