import sys
from pathlib import Path

import pytest

from tenfold.machine import crew


@pytest.fixture(scope="session", autouse=True)
def _warm_server() -> None:
    """Start the server of processes before a test changes the folder, which a relative PYTHONPATH would not survive."""
    crew.warm_up()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENFOLD_RUNS", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
