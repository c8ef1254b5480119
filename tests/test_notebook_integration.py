"""The notebook in examples/ runs from its first cell to its last, and shows progress and results as HTML."""

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import tenfold

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


@pytest.mark.timeout(120)
def test_the_tour_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(tenfold.__file__).parents[1]))
    monkeypatch.setenv("TENFOLD_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(TOUR, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "keep the notebook without its outputs"
    client = NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}})
    client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(shown) < 15, "progress is one output that is replaced"
    progress, first = shown[:2]
    assert "epoch 3/3" in progress
    assert "run 1: mlp-digits, finished" in first
    assert any("cross-validation" in one and "95% in" in one for one in shown)
    assert len([run for run in tenfold.list_runs(runs=tmp_path / "runs") if run.status == "finished"]) >= 8
