"""What is stored of a model's outputs, and what is read back."""

from pathlib import Path

import numpy as np
import pytest

import tenfold
from tenfold.errors import StoreError
from tenfold.runs import stored_predictions
from tenfold.runs.events import Note
from tenfold.runs.stored_predictions import Predictions


def made(kind: str = "classes", **changes: object) -> Predictions:
    outputs = np.array([[2.0, 1.0], [0.0, 3.0], [5.0, -1.0]], dtype=np.float32)
    fields = {"samples": np.array([4, 0, 2]), "outputs": outputs, "targets": np.array([0, 1, 1])} | changes
    return Predictions("test", kind, **fields)  # type: ignore[arg-type]


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    stored_predictions.save({"test": made()}, tmp_path / stored_predictions.FILE)
    found = stored_predictions.load(tmp_path / stored_predictions.FILE, "test")
    assert found is not None
    assert (found.part, found.kind, found.samples.tolist()) == ("test", "classes", [4, 0, 2])
    assert found.predictions.tolist() == [0, 1, 0]
    assert found.right.tolist() == [True, True, False]
    assert found.confusion().tolist() == [[1, 0], [1, 1]]
    assert stored_predictions.load(tmp_path / stored_predictions.FILE, "validation") is None
    assert stored_predictions.load(tmp_path / "other.npz", "test") is None


def test_labels_are_right_one_by_one_and_numbers_are_neither() -> None:
    several = made("logit", targets=np.array([[1, 0], [0, 1], [1, 1]], dtype=np.float32))
    assert several.right.tolist() == [[True, False], [True, True], [True, False]]
    with pytest.raises(StoreError, match="one class for each sample"):
        several.confusion()
    with pytest.raises(StoreError, match="not right or wrong"):
        _ = made("numbers").right


def test_models_of_different_samples_are_joined_in_order() -> None:
    whole = stored_predictions.join([made(), made(samples=np.array([1, 3, 5]))])
    assert whole.samples.tolist() == [0, 1, 2, 3, 4, 5]
    assert whole.predictions.tolist() == [1, 0, 0, 1, 0, 0]


def test_large_outputs_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_predictions, "LIMIT", 8)
    stored_predictions.save({"test": made()}, tmp_path / stored_predictions.FILE)
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / stored_predictions.FILE).write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(StoreError, match=r"predictions\.npz is damaged"):
        stored_predictions.load(tmp_path / stored_predictions.FILE, "test")


def test_a_run_gives_back_the_numbers_of_its_test_samples(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(40, 1)
    y = np.arange(40) % 2
    fields = {"model": "mlp", "hidden": [2], "data": (x, y), "epochs": 1, "test_fraction": 0.25, "runs": tmp_path}
    run = tenfold.train(**fields, validation_fraction=0.2)
    tested, validated = run.predictions, run.predictions_on("validation")
    assert tested.right.mean() == pytest.approx(run.accuracy)
    assert (tested.targets == y[tested.samples]).all()
    assert (validated.targets == y[validated.samples]).all()
    assert not set(tested.samples) & set(validated.samples)
    silent = tenfold.train(**fields, save_predictions=False)
    with pytest.raises(StoreError, match="predictions"):
        _ = silent.predictions


def test_outputs_that_are_too_large_are_not_stored_and_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_predictions, "LIMIT", 8)
    data = (np.random.default_rng(0).random((60, 2), dtype=np.float32), np.arange(60) % 2)
    run = tenfold.train(model="mlp", data=data, epochs=1, test_fraction=0.5, runs=tmp_path)
    assert run.status == "finished"
    assert not (run.path / stored_predictions.FILE).exists()
    assert any("not stored with the run" in event.text for event in run.events() if isinstance(event, Note))


def test_a_vote_does_not_need_the_outputs_of_the_folds_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"model": "mlp", "data": "digits", "limit": 90, "epochs": 1, "folds": 3, "fold_mode": "fold-by-fold"}
    stored = tenfold.cross_validate(**fields, runs=tmp_path)
    monkeypatch.setattr(stored_predictions, "LIMIT", 8)
    silent = tenfold.cross_validate(**fields, runs=tmp_path)
    assert not list(silent.runs[0].path.glob("*outputs*"))
    assert silent.run.result["models"]["vote"]["metrics"] == pytest.approx(
        stored.run.result["models"]["vote"]["metrics"], rel=1e-5
    )
