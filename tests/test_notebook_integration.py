"""The notebook in examples/ runs from its first cell to its last, and shows progress and results as HTML."""

import json
from pathlib import Path

import pytest
from forked import forked_python

import tenfold

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


@pytest.fixture
def _kernel(tmp_path, monkeypatch):
    """A kernel that is forked from a server that has torch, and works in a folder of its own."""
    command = [*forked_python(), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({"argv": command, "display_name": "Python", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(Path(tenfold.__file__).parents[1]))
    monkeypatch.setenv("TENFOLD_RUNS", str(tmp_path / "runs"))


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("_kernel")
def test_the_tour_runs(tmp_path):
    import nbformat  # here, as not every process that shares the tests needs it
    from nbclient import NotebookClient

    tour = nbformat.read(TOUR, as_version=4)
    assert not any(cell.get("outputs") for cell in tour.cells), "keep it without outputs"
    folder = {"metadata": {"path": str(tmp_path)}}  # where it writes its files
    NotebookClient(tour, timeout=110, kernel_name="python3", resources=folder).execute()
    cells = [_shown(cell) for cell in tour.cells]
    assert max(map(len, cells)) == 2, "progress is one output that is replaced, and the result another"
    shown = [item for cell in cells for item in cell]
    progress, first = shown[:2]
    assert "epoch 3/3" in progress
    assert "run 1: mlp-digits, finished" in first
    assert any("cross-validation" in item and "95% in" in item for item in shown)
    assert len([run for run in tenfold.list_runs(runs=tmp_path / "runs") if run.status == "finished"]) >= 15


def _shown(cell):
    """Return what a cell shows as HTML."""
    found = [output.get("data", {}) for output in cell.get("outputs", ())]
    return [data["text/html"] for data in found if "text/html" in data]
