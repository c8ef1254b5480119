"""Every program in examples/ runs to its end and does what it says."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from example_program import run_program
from forked import start_program

import tenfold

EXAMPLES = Path(__file__).parents[1] / "examples"


def check_own_model(output: str, folder: Path) -> None:
    assert "2 workers, 5 epochs: rmse 0.0" in output
    assert "a prediction of shape (3, 1)" in output
    assert tenfold.open_run(runs=folder / "runs").status == "finished"


def check_compare_strategies(output: str, folder: Path) -> None:
    rows = output.replace(" × 1 ! |", " × 1 |")  # a busy machine marks rows whose times are doubtful
    for row in ("| 1 × 1 | – |", "| 4 × 1 | allreduce |", "| 4 × 1 | butterfly |", "| 4 × 1 | none |"):
        assert row in rows
    assert "least sent: butterfly" in output
    assert 'data-plot="speedup"' in (folder / "compare.html").read_text()


def check_own_loop(output: str, folder: Path) -> None:
    assert "1 rank, 540 steps each: test accuracy 0.9" in output


def check_callbacks(output: str, folder: Path) -> None:
    lines = output.splitlines()
    assert lines[0].startswith("epoch 1: test accuracy ")
    assert "stopped by accuracy above 85% after" in lines[-1]


def check_find_runs(output: str, folder: Path) -> None:
    assert "3 runs, 2 of them with lr > 0.01" in output
    assert "tagged ('best',)" in output


def check_saved_model(output: str, folder: Path) -> None:
    assert "this process knows Network: True" in output
    assert (
        "another process, without trust: the model <Network> of run 1 was given as a Python object and cannot" in output
    )
    assert "another process, with trust: the same outputs: True" in output


def check_sklearn_estimators(output: str, folder: Path) -> None:
    assert "accuracy on 3 folds: 0.9" in output
    assert "best width of the hidden layer:" in output
    assert float(output.rpartition("R2 of the regressor: ")[2]) > 0.9
    assert not (folder / "runs").exists()


def check_several_inputs(output: str, folder: Path) -> None:
    for row in ("1 worker: accuracy 0.9", "2 workers: accuracy 0.9", "3 folds: accuracy 0.9"):
        assert row in output


def check_different_lengths(output: str, folder: Path) -> None:
    assert "1 worker: accuracy 0.9" in output
    assert "2 workers: accuracy 0.9" in output


def check_several_outputs(output: str, folder: Path) -> None:
    assert "autoencoder with a classifier, 2 workers: accuracy 0.9, blank 0.0" in output
    assert "a network that computes its loss, 2 workers: accuracy 0.9" in output


def check_table_from_file(output: str, folder: Path) -> None:
    assert "classification: 'late' has 2 classes (no, yes), predicted from 3 columns as 5 inputs" in output
    assert "regression: 'price' is predicted as a number" in output
    assert float(output.rpartition("1 worker: rmse ")[2]) < 0.15


def check_accumulate_and_average(output: str, folder: Path) -> None:
    assert "accuracy 0.9 with batches in one piece, 0.9 in four, 0.9 with activations computed again" in output
    assert "2 workers with a moving average of their weights: accuracy 0.9" in output


def check_own_optimizer(output: str, folder: Path) -> None:
    assert "NAdam with StepLR, 1 worker: accuracy 0.9" in output
    assert "two learning rates, 2 workers: accuracy 0.9" in output


def check_several_labels(output: str, folder: Path) -> None:
    assert "1 worker: accuracy 0.9" in output
    assert "2 workers: accuracy 0.9" in output
    assert output.count("f1_macro 0.9") == 2


CHECKS: dict[str, Callable[[str, Path], None]] = {
    "accumulate_and_average.py": check_accumulate_and_average,
    "callbacks.py": check_callbacks,
    "compare_strategies.py": check_compare_strategies,
    "find_runs.py": check_find_runs,
    "different_lengths.py": check_different_lengths,
    "own_loop.py": check_own_loop,
    "own_model.py": check_own_model,
    "own_optimizer.py": check_own_optimizer,
    "saved_model.py": check_saved_model,
    "sklearn_estimators.py": check_sklearn_estimators,
    "several_inputs.py": check_several_inputs,
    "several_labels.py": check_several_labels,
    "several_outputs.py": check_several_outputs,
    "table_from_file.py": check_table_from_file,
}


def environment(folder: Path) -> dict[str, str]:
    """No data set is on the machine, and nothing can be fetched: what remains is what ships with scikit-learn."""
    closed = "http://127.0.0.1:9"
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return kept | {
        "PYTHONPATH": str(Path(tenfold.__file__).parents[1]),
        "TENFOLD_CACHE": str(folder / "cache"),
        "TENFOLD_DATA": str(folder / "data"),
        "TENFOLD_RUNS": str(folder / "runs"),
        "PIP_NO_INDEX": "1",
        "http_proxy": closed,
        "https_proxy": closed,
    }


def test_none_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == CHECKS.keys()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CHECKS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    process = start_program(run_program, EXAMPLES / name, tmp_path, environment(tmp_path))
    process.join(110)
    process.kill()
    process.join()
    output = (tmp_path / "output").read_text()
    assert process.exitcode == 0, output
    assert "Traceback" not in output
    CHECKS[name](output, tmp_path)
