import os
import pickle
from contextlib import suppress

import pytest
import torch
from made_store import flip, refused

from tenfold.errors import StoreError
from tenfold.runs import checkpoint

STATE = {"weights": torch.arange(6.0).reshape(2, 3), "epoch": 3, "name": "x", "list": [1, 2.5, None, True]}


def test_what_is_saved_is_loaded(tmp_path):
    checkpoint.save_tensors(STATE, tmp_path / "new" / "x.pt")
    loaded = checkpoint.load_tensors(tmp_path / "new" / "x.pt")
    assert torch.equal(loaded.pop("weights"), STATE["weights"])
    assert loaded == {key: value for key, value in STATE.items() if key != "weights"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.pt"]


def test_a_file_that_is_missing_or_damaged_is_explained(tmp_path):
    path = tmp_path / "x.pt"
    assert "there is no file" in refused(checkpoint.load_tensors, path)
    checkpoint.save_tensors(STATE, path)
    whole = path.read_bytes()
    for damaged in (b"", b"junk", whole[: len(whole) // 2], b"\0" * len(whole)):
        path.write_bytes(damaged)
        assert f"{path} is damaged and cannot be read" in refused(checkpoint.load_tensors, path)


class Malice:
    def __reduce__(self):
        return os.mkdir, (os.environ["MALICE_FOLDER"],)


def test_no_code_from_a_file_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MALICE_FOLDER", str(tmp_path / "made"))
    torch.save({"weights": Malice()}, tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(pickle.dumps(Malice()))
    for name in ("x.pt", "y.pt"):
        assert "cannot be read" in refused(checkpoint.load_tensors, tmp_path / name)
    assert not (tmp_path / "made").exists()


def test_a_write_that_fails_is_explained_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.pt"
    checkpoint.save_tensors(STATE, path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refused(checkpoint.save_tensors, STATE, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_the_way_of_the_folder_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(checkpoint.save_tensors, STATE, tmp_path / "file" / "x.pt")


def same(one, other):
    return torch.equal(one["weights"], other["weights"]) and all(
        one[key] == other[key] for key in ("epoch", "name", "list")
    )


@pytest.mark.parametrize("start", range(8))
def test_no_flipped_bit_changes_what_is_loaded(tmp_path, start):
    path = tmp_path / "x.pt"
    checkpoint.save_tensors(STATE, path)
    whole = path.read_bytes()
    for place in range(start, len(whole), 8 * 3 + 1):
        flip(path, place)
        with suppress(StoreError):
            assert same(checkpoint.load_tensors(path), STATE), place  # a byte that means nothing
        path.write_bytes(whole)


def test_a_flipped_bit_of_a_weight_is_noticed(tmp_path):
    path = tmp_path / "x.pt"
    checkpoint.save_tensors({"weights": torch.zeros(10_000)}, path)
    flip(path, path.stat().st_size // 2)
    torch.load(path, weights_only=True)  # torch itself does not look
    assert "the checksum of archive/data/0 is wrong" in refused(checkpoint.load_tensors, path)
