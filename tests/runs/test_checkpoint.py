import os
import pickle
from contextlib import suppress

import pytest
import torch

from tenfold.errors import StoreError
from tenfold.runs import checkpoint

STATE = {"weights": torch.arange(6.0).reshape(2, 3), "epoch": 3, "name": "x", "list": [1, 2.5, None, True]}


def write_epoch(folder, epoch, workers=2):
    for rank in range(workers):
        checkpoint.save({"epoch": epoch, "rank": rank}, folder / checkpoint.file_name(epoch, rank))


def refused(action, *args):
    with pytest.raises(StoreError) as caught:
        action(*args)
    return str(caught.value)


def test_what_is_saved_is_loaded(tmp_path):
    checkpoint.save(STATE, tmp_path / "new" / "x.pt")
    loaded = checkpoint.load(tmp_path / "new" / "x.pt")
    assert torch.equal(loaded.pop("weights"), STATE["weights"])
    assert loaded == {key: value for key, value in STATE.items() if key != "weights"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.pt"]


def test_a_file_that_is_missing_or_damaged_is_explained(tmp_path):
    path = tmp_path / "x.pt"
    assert "there is no file" in refused(checkpoint.load, path)
    checkpoint.save(STATE, path)
    whole = path.read_bytes()
    for damaged in (b"", b"junk", whole[: len(whole) // 2], b"\0" * len(whole)):
        path.write_bytes(damaged)
        assert f"{path} is damaged and cannot be read" in refused(checkpoint.load, path)


class Malice:
    def __reduce__(self):
        return os.mkdir, (os.environ["MALICE_FOLDER"],)


def test_no_code_from_a_file_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MALICE_FOLDER", str(tmp_path / "made"))
    torch.save({"weights": Malice()}, tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(pickle.dumps(Malice()))
    for name in ("x.pt", "y.pt"):
        assert "cannot be read" in refused(checkpoint.load, tmp_path / name)
    assert not (tmp_path / "made").exists()


def test_a_write_that_fails_is_explained_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.pt"
    checkpoint.save(STATE, path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refused(checkpoint.save, STATE, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_the_way_of_the_folder_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(checkpoint.save, STATE, tmp_path / "file" / "x.pt")
    assert "cannot be written" in refused(checkpoint.commit, tmp_path / "file", {"epoch": 1})


def test_before_the_first_commit_there_is_no_checkpoint(tmp_path):
    assert checkpoint.latest(tmp_path / "none") is None
    write_epoch(tmp_path, 1)
    assert checkpoint.latest(tmp_path) is None


def test_a_commit_names_its_epoch_and_keeps_the_one_before(tmp_path):
    before = None
    for epoch in (10, 1, 11):
        write_epoch(tmp_path, epoch)
        for _ in range(2):  # again when a worker is lost before the next epoch
            checkpoint.commit(tmp_path, {"epoch": epoch, "workers": 2})
        assert checkpoint.latest(tmp_path) == {"epoch": epoch, "workers": 2}
        kept = [one for one in (before, epoch) if one is not None]
        names = {checkpoint.file_name(one, rank) for one in kept for rank in range(2)}
        manifests = {checkpoint.MANIFEST, *([checkpoint.BEFORE] if before else [])}
        assert {path.name for path in tmp_path.iterdir()} == names | manifests
        before = epoch


def test_until_the_commit_the_epoch_before_is_whole(tmp_path):
    write_epoch(tmp_path, 1)
    checkpoint.commit(tmp_path, {"epoch": 1})
    write_epoch(tmp_path, 2, workers=1)
    manifest = checkpoint.latest(tmp_path)
    for rank in range(2):
        loaded = checkpoint.load(tmp_path / checkpoint.file_name(manifest["epoch"], rank))
        assert loaded == {"epoch": 1, "rank": rank}


def test_a_commit_that_fails_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    write_epoch(tmp_path, 1)
    checkpoint.commit(tmp_path, {"epoch": 1})
    write_epoch(tmp_path, 2)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "cannot be written: No space left" in refused(checkpoint.commit, tmp_path, {"epoch": 2})
    assert checkpoint.latest(tmp_path) == {"epoch": 1}
    assert (tmp_path / checkpoint.file_name(1, 1)).exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1, 2]", b"3", b"null", b"{}", b'{"epoch": "x"}'])
def test_a_damaged_manifest_is_explained(tmp_path, content):
    (tmp_path / checkpoint.MANIFEST).write_bytes(content)
    assert "is damaged" in refused(checkpoint.latest, tmp_path)


def test_removing_leaves_nothing_and_minds_nothing(tmp_path):
    write_epoch(tmp_path / "checkpoint", 1)
    checkpoint.remove(tmp_path / "checkpoint")
    checkpoint.remove(tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == []


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << (place % 8)
    path.write_bytes(bytes(content))


def same(one, other):
    return torch.equal(one["weights"], other["weights"]) and all(
        one[key] == other[key] for key in ("epoch", "name", "list")
    )


@pytest.mark.parametrize("start", range(8))
def test_no_flipped_bit_changes_what_is_loaded(tmp_path, start):
    path = tmp_path / "x.pt"
    checkpoint.save(STATE, path)
    whole = path.read_bytes()
    for place in range(start, len(whole), 8 * 3 + 1):
        flip(path, place)
        with suppress(StoreError):
            assert same(checkpoint.load(path), STATE), place  # a byte that means nothing
        path.write_bytes(whole)


def test_a_flipped_bit_of_a_weight_is_noticed(tmp_path):
    path = tmp_path / "x.pt"
    checkpoint.save({"weights": torch.zeros(10_000)}, path)
    flip(path, path.stat().st_size // 2)
    torch.load(path, weights_only=True)  # torch itself does not look
    assert "the checksum of archive/data/0 is wrong" in refused(checkpoint.load, path)


@pytest.mark.parametrize("name", [checkpoint.MANIFEST, checkpoint.file_name(2, 1)])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, name):
    for epoch in (1, 2):
        write_epoch(tmp_path, epoch)
        checkpoint.commit(tmp_path, {"epoch": epoch, "seconds": 1.5})
    assert checkpoint.sound(tmp_path) == ({"epoch": 2, "seconds": 1.5}, "")
    path = tmp_path / name
    path.write_bytes(path.read_bytes().replace(b"1.5", b"2.5") if name == checkpoint.MANIFEST else b"\0" * 100)
    manifest, problem = checkpoint.sound(tmp_path)
    assert manifest == {"epoch": 1, "seconds": 1.5}
    assert str(path) in problem
    assert problem.endswith("continuing from epoch 1 instead")
    flip(tmp_path / checkpoint.file_name(1, 0), 50)
    flip(tmp_path / checkpoint.BEFORE, 5)
    assert "to train again from the beginning" in refused(checkpoint.sound, tmp_path)


def test_a_manifest_of_an_earlier_version_has_no_checksum(tmp_path):
    (tmp_path / checkpoint.MANIFEST).write_text('{"epoch": 3, "workers": 2}')
    assert checkpoint.latest(tmp_path) == {"epoch": 3, "workers": 2}
