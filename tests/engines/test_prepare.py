"""Digests of the user's own files."""

from pathlib import Path

import pytest

from tenfold.experiment import Experiment
from tenfold.machine.metadata import user_files


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_folder_may_hold_links_to_what_is_not_there() -> None:
    Path("photos").mkdir()
    Path("photos/one.png").write_bytes(b"1")
    photos = Experiment(data={"name": "photos/"})
    before = user_files(photos)
    Path("photos/lost.png").symlink_to("nowhere.png")
    assert user_files(photos) == before != {}
    Path("photos/two.png").write_bytes(b"2")
    assert user_files(photos) != before
