"""The notebook in examples/ runs from its first cell to its last, and shows progress and results as HTML."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import tenfold

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


@pytest.mark.timeout(120)
def test_the_tour_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(tenfold.__file__).parents[1]))
    monkeypatch.setenv("TENFOLD_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    assert not any(cell.get("outputs") for cell in nbformat.read(TOUR, as_version=4).cells), "keep it without outputs"
    shutil.copy(TOUR, tmp_path)  # it runs, and writes its files, where it lies
    command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "notebook", "--inplace", TOUR.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = [_shown(cell) for cell in nbformat.read(tmp_path / TOUR.name, as_version=4).cells]
    assert max(map(len, cells)) == 2, "progress is one output that is replaced, and the result another"
    shown = [one for cell in cells for one in cell]
    progress, first = shown[:2]
    assert "epoch 3/3" in progress
    assert "run 1: mlp-digits, finished" in first
    assert any("cross-validation" in one and "95% in" in one for one in shown)
    assert len([run for run in tenfold.list_runs(runs=tmp_path / "runs") if run.status == "finished"]) >= 15


def _shown(cell):
    """Return what a cell shows as HTML."""
    found = [output.get("data", {}) for output in cell.get("outputs", ())]
    return [data["text/html"] for data in found if "text/html" in data]
