import errno
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import fetch_process
import pytest
from forked import start_forked

from tenfold.common.files import PARTIAL
from tenfold.data import SOURCES, get, load
from tenfold.data.sources import fetch, showing_downloads
from tenfold.errors import DataError
from tenfold.workers.fork_server import context

pytestmark = pytest.mark.timeout(60)
WHOLE = [".lock", "tiny-x.gz", "tiny-y.gz"]
NOBODY = "http://127.0.0.1:9/"
"""The discard port: nothing answers there."""


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(cache):
    pass


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_are_fetched_once_and_then_found(cache, tiny, mirror):
    for _ in range(2):
        assert get("tiny") == cache
    assert load("tiny").train.targets.tolist() == list(range(10))
    assert mirror.asked == ["tiny-x.gz", "tiny-y.gz"]
    assert names(cache) == WHOLE


def test_only_what_is_missing_is_fetched(cache, tiny, mirror, put):
    put(cache, only=("tiny-x",))
    get("tiny")
    assert mirror.asked == ["tiny-y.gz"]


def test_progress_is_told(tiny, mirror):
    told = []
    with showing_downloads(lambda done, total, name: told.append((done, total, name))):
        get("tiny")
    size = len(mirror.files["tiny-x.gz"])
    assert told[0] == (size, size, "tiny-x.gz")


def test_the_next_mirror_helps_when_one_does_not_answer(cache, tiny, mirror):
    fetch(replace(tiny, mirrors=(NOBODY, f"{mirror.address}nothing/here/", mirror.address)), cache)
    assert names(cache) == WHOLE


def test_the_fallback_helps_when_no_mirror_answers(cache, tiny, put, tmp_path):
    plain = put(tmp_path / "plain", gz=False)
    contents = {name: (plain / name).read_bytes() for name in tiny.files}
    fetched = fetch(replace(tiny, mirrors=(NOBODY,), fallback=lambda: contents), cache)
    assert fetched == contents
    assert names(cache) == WHOLE


def test_a_wrong_fallback_is_refused(cache, tiny):
    with pytest.raises(DataError, match="tiny-x"):
        fetch(replace(tiny, mirrors=(), fallback=lambda: {"tiny-x": b"something else"}), cache)
    assert names(cache) == [".lock"]


def test_without_network_the_error_says_what_was_tried_and_what_to_do(cache, tiny):
    with pytest.raises(DataError) as caught:
        fetch(replace(tiny, mirrors=(NOBODY,)), cache)
    message = str(caught.value)
    assert f"tried {NOBODY} (tiny-x.gz: " in message
    assert "refused" in message
    assert f"Put tiny-x.gz, tiny-y.gz into {cache}, or use data 'digits'" in message


def test_a_mirror_that_serves_something_else_leaves_nothing(cache, tiny, mirror):
    mirror.files["tiny-x.gz"] = b"<html>Log in</html>"
    with pytest.raises(DataError, match="sha256"):
        get("tiny")
    assert names(cache) == [".lock"]


def test_nothing_larger_than_it_should_be_is_received(cache, tiny, mirror):
    mirror.files["tiny-x.gz"] = bytes(10**6)
    with pytest.raises(DataError, match="larger"):
        get("tiny")
    assert names(cache) == [".lock"]


def test_a_server_that_hardly_sends_anything_is_given_up(cache, tiny, mirror, monkeypatch):
    monkeypatch.setattr("tenfold.data.sources._GRACE_SECONDS", -60.0)
    with pytest.raises(DataError, match=r"only [\d,]+ bytes were received within"):
        get("tiny")
    assert names(cache) == [".lock"]


def test_what_is_received_is_verified_before_it_is_decompressed(cache, tiny, mirror, monkeypatch):
    def refuse(*_):
        raise AssertionError("decompressed")

    monkeypatch.setattr("gzip.open", refuse)
    mirror.files["tiny-x.gz"] = mirror.files["tiny-x.gz"][:-1] + b"?"
    with pytest.raises(DataError, match="its sha256 is wrong"):
        get("tiny")


def test_a_package_is_named_where_there_is_one(cache, tiny):
    with pytest.raises(DataError, match=r"tiny-x\.gz, tiny-y\.gz"):
        fetch(replace(tiny, mirrors=(), package="dataset-tiny"), cache)


def test_built_in_data_sets_come_over_https_first():
    for source in (SOURCES["mnist"], SOURCES["fashion-mnist"]):
        secure = [mirror.startswith("https://") for mirror in source.mirrors]
        assert secure[:2] == [True, True]
        assert secure == sorted(secure, reverse=True)


def test_a_connection_that_breaks_off_leaves_no_half_file(cache, tiny, mirror):
    mirror.announce = 1000
    mirror.files["tiny-y.gz"] = mirror.files["tiny-y.gz"][:-9]
    with pytest.raises(DataError, match=r"tiny-[xy]\.gz"):
        get("tiny")
    assert not [name for name in names(cache) if name.endswith(PARTIAL)]


def test_an_interrupt_leaves_no_half_file(cache, tiny):
    def interrupt(*_):
        raise KeyboardInterrupt

    with showing_downloads(interrupt), pytest.raises(KeyboardInterrupt):
        get("tiny")
    assert names(cache) == [".lock"]
    assert get("tiny") == cache


def test_what_a_killed_process_left_is_swept_away(cache, tiny):
    cache.mkdir(parents=True)
    (cache / f".tiny-x.gz.abc{PARTIAL}").write_bytes(b"half")
    get("tiny")
    assert names(cache) == WHOLE


def test_a_full_disk_is_explained_and_leaves_no_half_file(cache, tiny, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"No space left on device.*TENFOLD_CACHE"):
        get("tiny")
    assert names(cache) == [".lock"]


def test_a_cache_that_cannot_be_made_is_explained(tiny, tmp_path, monkeypatch):
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path / "a-file"))
    with pytest.raises(DataError, match="Not a directory"):
        get("tiny")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_explained(cache, tiny):
    cache.mkdir(parents=True)
    cache.chmod(0o500)
    with pytest.raises(DataError, match="Permission denied"):
        get("tiny")
    assert names(cache) == []


def test_processes_that_fetch_at_once_share_one_download(cache, tiny, mirror):
    begin, (here, there) = context().Barrier(2), multiprocessing.Pipe()
    others = [
        start_forked(fetch_process.fetch_files, cache, mirror.address, tiny.files, begin, there) for _ in range(2)
    ]
    assert [here.recv() for _ in others] == [66, 66]
    for other in others:
        other.join()
    assert mirror.asked == ["tiny-x.gz", "tiny-y.gz"]
    assert names(cache) == WHOLE
