from collections import Counter

import numpy as np
import pytest
import torch

from tenfold.data import SOURCES, DatasetPart, Tensors, load
from tenfold.data import sources as idx
from tenfold.errors import DataError


@pytest.mark.parametrize("name", SOURCES)
class TestEverySource:
    def test_describes_itself(self, name):
        source = SOURCES[name]
        assert source.name == name
        assert source.description
        assert all(len(file.sha256) == len(file.download_sha256) == 64 for file in source.files.values())
        assert all(mirror.endswith("/") for mirror in source.mirrors)
        assert bool(source.files) == bool(source.mirrors)

    def test_refuses_options_that_it_does_not_have(self, name):
        made = SOURCES[name].make is not None
        expected = r"data\.options\.size" if made else f"data '{name}' takes no options, but was given size"
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
