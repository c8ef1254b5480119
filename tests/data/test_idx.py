import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from looped import looped

from tenfold.data import sources as idx
from tenfold.errors import DataError

TYPES = st.sampled_from(["u1", "i1", "<i2", "<i4", "<f4", "<f8"])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@given(TYPES.flatmap(lambda kind: arrays.arrays(kind, SHAPES)))
def test_what_is_encoded_is_decoded(array):
    back = idx.decode(idx.encode(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_the_header_is_as_the_format_says():
    assert idx.encode(np.array([[1, 2, 3]], dtype=np.int16)) == bytes.fromhex(
        "00000b02 00000001 00000003 0001 0002 0003"
    )


@pytest.mark.parametrize("zipped", [False, True])
def test_content_is_the_same_plain_and_gzipped(tmp_path, zipped):
    data = idx.encode(np.arange(5, dtype=np.uint8))
    (tmp_path / "small").write_bytes(idx.compress(data) if zipped else data)
    assert idx.content(tmp_path / "small", 10**6) == data


def test_the_same_bytes_give_the_same_file_at_any_time(monkeypatch):
    before = idx.compress(b"hello")
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert idx.compress(b"hello") == before


@looped("kept", range(12))
def test_truncated_data_are_noticed(kept):
    whole = idx.encode(np.zeros((2, 2), dtype=np.uint8))
    with pytest.raises(DataError, match=r"(truncated|damaged|idx file)"):
        idx.decode(whole[:kept])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(gzip.compress(idx.encode(np.zeros(500, dtype=np.uint8)))[:-9], id="truncated"),
        pytest.param(b"\x1f\x8b" + b"?" * 50, id="garbage"),
        pytest.param(gzip.compress(b"hello")[:-8] + bytes(8), id="wrong checksum"),
    ],
)
def test_a_damaged_gzip_is_named(tmp_path, content):
    (tmp_path / "bad.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.gz cannot be read"):
        idx.content(tmp_path / "bad.gz", 10**6)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="nothing-here cannot be read"):
        idx.content(tmp_path / "nothing-here", 10**6)


def test_types_that_idx_cannot_hold_are_refused():
    with pytest.raises(DataError, match="cannot hold int64"):
        idx.encode(np.arange(3))


@pytest.mark.parametrize("compressed", [True, False])
def test_no_more_is_read_than_allowed(tmp_path, compressed):
    data = bytes(10**7)
    (tmp_path / "bomb").write_bytes(idx.compress(data) if compressed else data)
    with pytest.raises(DataError, match="bomb holds more than the 1,000 bytes that it should have"):
        idx.content(tmp_path / "bomb", 1000)
