import os

import pytest
from made_store import flip, refused

from tenfold.runs import checkpoint


def write_epoch(folder, epoch, workers=2):
    for rank in range(workers):
        checkpoint.save_tensors({"epoch": epoch, "rank": rank}, folder / checkpoint.file_name(epoch, rank))


def test_a_file_in_the_way_of_the_folder_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(checkpoint.commit, tmp_path / "file", {"epoch": 1})


def test_before_the_first_commit_there_is_no_checkpoint(tmp_path):
    assert checkpoint.find_undamaged(tmp_path / "none")[0] is None
    write_epoch(tmp_path, 1)
    assert checkpoint.find_undamaged(tmp_path)[0] is None


def test_a_commit_names_its_epoch_and_keeps_the_one_before(tmp_path):
    before = None
    for epoch in (10, 1, 11):
        write_epoch(tmp_path, epoch)
        for _ in range(2):  # again when a worker is lost before the next epoch
            checkpoint.commit(tmp_path, {"epoch": epoch, "workers": 2})
        assert checkpoint.find_undamaged(tmp_path)[0] == {"epoch": epoch, "workers": 2}
        kept = [item for item in (before, epoch) if item is not None]
        names = {checkpoint.file_name(item, rank) for item in kept for rank in range(2)}
        manifests = {checkpoint.MANIFEST, *([checkpoint.BEFORE] if before else [])}
        assert {path.name for path in tmp_path.iterdir()} == names | manifests
        before = epoch


def test_until_the_commit_the_epoch_before_is_whole(tmp_path):
    write_epoch(tmp_path, 1)
    checkpoint.commit(tmp_path, {"epoch": 1})
    write_epoch(tmp_path, 2, workers=1)
    manifest = checkpoint.find_undamaged(tmp_path)[0]
    for rank in range(2):
        loaded = checkpoint.load_tensors(tmp_path / checkpoint.file_name(manifest["epoch"], rank))
        assert loaded == {"epoch": 1, "rank": rank}


def test_a_commit_that_fails_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    write_epoch(tmp_path, 1)
    checkpoint.commit(tmp_path, {"epoch": 1})
    write_epoch(tmp_path, 2)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "cannot be written: No space left" in refused(checkpoint.commit, tmp_path, {"epoch": 2})
    assert checkpoint.find_undamaged(tmp_path)[0] == {"epoch": 1}
    assert (tmp_path / checkpoint.file_name(1, 1)).exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1, 2]", b"3", b"null", b"{}", b'{"epoch": "x"}'])
def test_a_damaged_manifest_is_explained(tmp_path, content):
    (tmp_path / checkpoint.MANIFEST).write_bytes(content)
    assert "is damaged" in refused(checkpoint.find_undamaged, tmp_path)


def test_removing_leaves_nothing_and_minds_nothing(tmp_path):
    write_epoch(tmp_path / "checkpoint", 1)
    checkpoint.remove(tmp_path / "checkpoint")
    checkpoint.remove(tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [checkpoint.MANIFEST, checkpoint.file_name(2, 1)])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, name):
    for epoch in (1, 2):
        write_epoch(tmp_path, epoch)
        checkpoint.commit(tmp_path, {"epoch": epoch, "seconds": 1.5})
    assert checkpoint.find_undamaged(tmp_path) == ({"epoch": 2, "seconds": 1.5}, "")
    path = tmp_path / name
    path.write_bytes(path.read_bytes().replace(b"1.5", b"2.5") if name == checkpoint.MANIFEST else b"\0" * 100)
    manifest, problem = checkpoint.find_undamaged(tmp_path)
    assert manifest == {"epoch": 1, "seconds": 1.5}
    assert str(path) in problem
    assert problem.endswith("continuing from epoch 1 instead")
    flip(tmp_path / checkpoint.file_name(1, 0), 50)
    flip(tmp_path / checkpoint.BEFORE, 5)
    assert "to train again from the beginning" in refused(checkpoint.find_undamaged, tmp_path)


@pytest.mark.parametrize("name", [checkpoint.MANIFEST, checkpoint.file_name(2, 0), checkpoint.file_name(2, 1)])
def test_a_missing_file_is_noticed_as_a_damaged_one_is(tmp_path, name):
    for epoch in (1, 2):
        write_epoch(tmp_path, epoch)
        checkpoint.commit(tmp_path, {"epoch": epoch, "workers": 2})
    (tmp_path / name).unlink()
    manifest, problem = checkpoint.find_undamaged(tmp_path)
    assert manifest == {"epoch": 1, "workers": 2}
    assert name in problem
    (tmp_path / checkpoint.file_name(1, 1)).unlink()
    assert "to train again from the beginning" in refused(checkpoint.find_undamaged, tmp_path)


def test_files_that_other_hosts_have_are_not_missed(tmp_path):
    checkpoint.save_tensors({}, tmp_path / checkpoint.file_name(1, 0))
    checkpoint.commit(tmp_path, {"epoch": 1, "workers": 2})
    assert checkpoint.find_undamaged(tmp_path) == ({"epoch": 1, "workers": 2}, "")
