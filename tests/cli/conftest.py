import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _as_a_user_begins(
    _warm_server: None, _in_a_folder_of_its_own: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Have no data, no colors, and the command line's way to show warnings only for a test."""
    monkeypatch.delenv("TENFOLD_DATA", raising=False)
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path / "cache"))
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    with warnings.catch_warnings():
        yield
