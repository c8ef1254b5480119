import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tenfold.data import idx
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


@pytest.mark.parametrize("name", ["small-idx1-ubyte", "small-idx1-ubyte.gz"])
def test_files_are_read_back_plain_and_gzipped(tmp_path, name):
    idx.write(tmp_path / name, np.arange(5, dtype=np.uint8))
    assert idx.read(tmp_path / name).tolist() == [0, 1, 2, 3, 4]
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_the_same_array_gives_the_same_file(tmp_path):
    for name in ("a.gz", "b.gz"):
        idx.write(tmp_path / name, np.arange(5, dtype=np.uint8))
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize("kept", range(12))
def test_a_truncated_file_is_noticed(tmp_path, kept):
    whole = idx.encode(np.zeros((2, 2), dtype=np.uint8))
    (tmp_path / "cut").write_bytes(whole[:kept])
    with pytest.raises(DataError, match=r"cut .*(truncated|damaged|idx file)"):
        idx.read(tmp_path / "cut")


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
        idx.read(tmp_path / "bad.gz")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="nothing-here cannot be read"):
        idx.read(tmp_path / "nothing-here")


def test_types_that_idx_cannot_hold_are_refused():
    with pytest.raises(DataError, match="cannot hold int64"):
        idx.encode(np.arange(3))
