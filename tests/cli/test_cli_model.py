"""Exporting the numbers and the model of runs."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from command_line import tenfold_

import tenfold
from tenfold.runs import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return tenfold.train(model="mlp", data="digits", epochs=2, limit=128, name="=HYPERLINK(1)", runs=folder)


def exported(folder: Path, *words: str) -> str:
    result = tenfold_("export", *words, "--runs", str(folder))
    assert result.exit_code == 0, result.stderr
    return result.stdout


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_every_table(run: Run, folder: Path) -> None:
    metrics = rows(exported(folder, "last"))
    assert {row["metric"] for row in metrics} >= {"loss", "lr", "accuracy"}
    assert {row["title"] for row in metrics} == {"'=HYPERLINK(1)"}
    epochs = rows(exported(folder, "--table", "epochs"))
    assert [float(row["test_accuracy"]) for row in epochs] == [row["test_accuracy"] for row in run.history]
    assert {row["kind"] for row in rows(exported(folder, "-t", "spans"))} >= {"start", "compute"}
    (result,) = rows(exported(folder, "-t", "result"))
    assert (result["status"], float(result["metrics.accuracy"])) == ("finished", run.accuracy)
    assert result["experiment.limit"] == "128"


def test_json_has_everything_or_one_table(run: Run, folder: Path) -> None:
    (everything,) = json.loads(exported(folder, "--format", "json"))
    assert everything["metrics"] == run.metrics
    assert everything["measurements"]["value"]
    assert json.loads(exported(folder, "-f", "json", "-t", "epochs"))[1]["epoch"] == 2


def test_a_trace_has_what_each_worker_did(run: Run, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert exported(folder, "--format", "trace", "-o", str(path)) == f"wrote {path}\n"
    assert json.loads(path.read_text()) == json.loads(json.dumps(run.trace()))


def test_parquet_has_columns_of_one_type(run: Run, folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "result.parquet"
    assert exported(folder, "-f", "parquet", "-t", "result", "-o", str(path)) == f"wrote {path}\n"
    (written,) = parquet.read_table(path).to_pylist()
    assert written["metrics.accuracy"] == run.accuracy
    assert written["tags"] == "[]"


@pytest.mark.timeout(120)
def test_a_program_and_the_weights_are_used_without_tenfold(run: Run, folder: Path, tmp_path: Path) -> None:
    program, weights = tmp_path / "model.pt2", tmp_path / "model.pt"
    said = exported(folder, "--format", "torch", "-o", str(program))
    assert f'torch.export.load("{program}").module()' in said
    assert "float32 of shape (n, 1, 8, 8)" in said
    x = torch.randn(5, 1, 8, 8)
    model = torch.export.load(program).module()
    torch.testing.assert_close(model(x), run.model(x))
    assert model(x[:1]).shape == (1, 10)
    assert "network.load_state_dict" in exported(folder, "--format", "torch", "-o", str(weights))
    run.model.load_state_dict(torch.load(weights, weights_only=True))


def test_what_cannot_be_exported_is_one_sentence(run: Run, folder: Path) -> None:
    for words, sentence in (
        (("-f", "xlsx"), "unknown format 'xlsx'"),
        (("-t", "epoch"), "unknown table 'epoch'; did you mean 'epochs'"),
        (("-f", "torch", "-o", "model.onnx"), "--format torch writes files that end with .pt2 or .pt, not model.onnx"),
        (("-f", "trace", "1", "1"), "--format trace exports the trace of one run"),
        (("-f", "torch", "1", "1"), "--format torch exports the model of one run"),
        (("99",), "there is no run '99'"),
    ):
        result = tenfold_("export", *words, "--runs", str(folder))
        assert result.exit_code == 2
        assert sentence in result.stderr
    if not _installed("onnx"):
        refused = tenfold_("export", "-f", "onnx", "--runs", str(folder))
        assert "an ONNX file needs the package onnx, which is not installed" in refused.stderr


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
