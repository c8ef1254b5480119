import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.common.files import (
    check_output,
    open_regular,
    open_to_update,
    read_regular,
    replacing,
    write_atomically,
)
from tenfold.errors import StoreError


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.binary(max_size=100_000), st.binary(max_size=100))
def test_the_last_content_written_is_there_and_nothing_else(tmp_path_factory, first, second):
    folder = tmp_path_factory.mktemp("files")
    for content in (first, second):
        write_atomically(folder / "x", content)
        assert (folder / "x").read_bytes() == content
    assert [path.name for path in folder.iterdir()] == ["x"]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"content", named_by_user=True)
    assert os.read(reader, 100) == b"content"
    assert pipe.is_fifo()
    write_atomically(pipe, b"content")  # in the folder of a run, somebody else may have put it there
    assert os.read(reader, 100) == b""
    assert pipe.is_file()
    os.close(reader)


@pytest.mark.parametrize("trouble", [ValueError, OSError, KeyboardInterrupt])
def test_on_any_error_the_file_stays_as_it_was(tmp_path, trouble):
    path = tmp_path / "x"
    path.write_bytes(b"before")

    def spoil():
        with replacing(path) as file:
            file.write(b"half of it")
            raise trouble

    with pytest.raises(trouble):
        spoil()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_until_the_block_ends_the_old_file_is_read(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"before")
    with replacing(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"


def test_a_write_that_fails_at_the_last_moment_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"before")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_others_may_read_it_as_the_umask_says(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "x", b"1")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o666 & ~mask


def test_before_a_file_is_replaced_only_its_folder_is_asked_for_permission(tmp_path, monkeypatch):
    path, pipe = tmp_path / "x", tmp_path / "pipe"
    path.touch()
    os.mkfifo(pipe)
    asked = []
    monkeypatch.setattr(os, "access", lambda one, _mode: asked.append(one) or one != tmp_path)
    for refused in (path, tmp_path / "new" / "x"):
        with pytest.raises(StoreError, match="permission denied"):
            check_output(refused, "a report")
    check_output(pipe, "a report")
    assert asked == [tmp_path, tmp_path, pipe]


def test_only_regular_files_are_opened(tmp_path):
    path, pipe, link = tmp_path / "x", tmp_path / "pipe", tmp_path / "link"
    path.write_bytes(b"content")
    os.mkfifo(pipe)
    link.symlink_to(path)
    assert read_regular(path) == read_regular(link) == b"content"
    for other, reason in (
        (pipe, "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(OSError, match=reason):
            open_regular(other)
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_regular(path, 3)
    for other in (pipe, link, tmp_path):
        with pytest.raises(OSError):  # noqa: PT011 - the system's own words
            open_to_update(other)
    with open_to_update(tmp_path / "new") as file:
        file.write(b"new")
    assert path.read_bytes() == b"content"
