"""Executors that are started for a command, where none is running."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenfold
from tenfold.executors import submitting
from tenfold.runs.events import Note

pytestmark = pytest.mark.timeout(240)
SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 200, "epochs": 1, "threads": 1}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ten-") as folder:  # Ray's sockets are in there, whose paths are short
        yield Path(folder)


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_an_executor_that_is_started_says_how_long_that_took(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_folder: Path
) -> None:
    pytest.importorskip({"dask": "distributed", "ray": "ray"}[name], reason=f"{name} is not installed")
    monkeypatch.setattr(submitting, "NOTICED_SECONDS", 0.0)  # Dask may start sooner on an idle machine
    monkeypatch.setenv("RAY_TMPDIR", str(short_folder))
    (short_folder / "ray").mkdir()
    (short_folder / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")  # of a Ray that is gone
    heard: list[Any] = []
    done = tenfold.compare(**SMALL, lr=[0.1, 0.01], runs=tmp_path, on=name, listen=heard.append)
    assert len(done.runs) == 2
    assert any(isinstance(event, Note) and f"{name} is ready" in event.text for event in heard)


def test_a_script_without_a_guard_is_run_once(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed")
    script = tmp_path / "script.py"
    script.write_text(
        f"import tenfold\nprint('begun')\ntenfold.compare(**{SMALL!r}, lr=[0.1, 0.01], runs='runs', on='dask')\n"
    )
    ended = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split().count("begun") == 1
    assert len(tenfold.list_runs(runs=tmp_path / "runs")) == 2
