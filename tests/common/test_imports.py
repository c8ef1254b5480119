import sys

import pytest
from looped import looped

from tenfold.common.imports import optional_module, resolve
from tenfold.errors import DataError, ExperimentError, MachineError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_own_things.py").write_text("class Nest:\n    egg = 3\ndef blobs():\n    return 1\n")
    (tmp_path / "my_broken_things.py").write_text("import a_module_that_is_missing\n")
    yield tmp_path
    for name in ("my_own_things", "my_broken_things"):
        sys.modules.pop(name, None)


def test_a_module_in_the_current_folder_is_found():
    assert resolve("my_own_things:blobs", "data")() == 1


def test_a_folder_with_the_name_of_an_optional_package_is_not_that_package(folder, monkeypatch):
    (folder / "my_scheduler").mkdir()
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(MachineError, match="not installed"):
        optional_module("my_scheduler", "scheduling", "scheduler")


def test_attributes_of_attributes_are_found():
    assert resolve("my_own_things:Nest.egg", "data") == 3


@looped(
    ("path", "message"),
    [
        ("my_own_things", r"package\.module"),
        (":blobs", "is not an import path"),
        ("my_own_things:", "is not an import path"),
        ("my_own_thing:blobs", "my_own_thing"),
        ("my_own_things.deeper:blobs", "there is no module 'my_own_things.deeper'"),
        ("my_own_things:blob", "blobs"),
    ],
)
def test_what_cannot_be_found_is_explained(path, message):
    with pytest.raises(ExperimentError, match=message):
        resolve(path, "data")


def test_the_kind_of_error_can_be_chosen():
    with pytest.raises(DataError):
        resolve("nowhere_at_all:x", "data", DataError)


def test_a_module_that_lacks_something_itself_keeps_its_traceback():
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        resolve("my_broken_things:x", "data")


def test_a_module_with_a_syntax_error_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_slip.py").write_text("x = 1\ndef (\n")
    with pytest.raises(ExperimentError, match=r"my_slip\.py"):
        resolve("my_slip:net", "model")
