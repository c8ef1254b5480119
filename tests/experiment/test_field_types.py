"""The types of keyword arguments are those of the fields; mypy checks their use, in `make check`."""

import ast

from write_field_types import FILE, written

from tenfold.experiment import FIELDS, SECTIONS
from tenfold.experiment.field_types import Fields, Grid


def test_the_generated_module_is_fresh():
    fresh, kept = (ast.dump(ast.parse(text)) for text in (written(), FILE.read_text()))
    assert fresh == kept, "experiment/field_types.py is stale: run `python tests/test_docs.py`"


def test_every_field_and_section_is_an_argument():
    assert Fields.__annotations__.keys() == Grid.__annotations__.keys() == {"name", *FIELDS, *SECTIONS}
