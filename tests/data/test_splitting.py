from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped

from tenfold.data import Splits, Tensors
from tenfold.data.splitting import draw, split
from tenfold.errors import DataError


def whole(labels: list[int], test: list[int] | None = None, validation: list[int] | None = None) -> Splits:
    """Samples whose x is their number, counted through all parts."""
    start, parts = 0, {}
    for name, some in (("train", labels), ("validation", validation), ("test", test)):
        if some is not None:
            numbers = torch.arange(start, start + len(some), dtype=torch.float32)
            parts[name] = Tensors(numbers.reshape(-1, 1), torch.tensor(some))
            start += len(some)
    return Splits(name="numbers", shape=(1,), classes=10, outputs=10, **parts)


def numbers(part) -> list[int]:
    return [] if part is None else part.x.flatten().int().tolist()


def everything(splits: Splits) -> list[int]:
    return sorted(numbers(splits.train) + numbers(splits.validation) + numbers(splits.test))


LABELS = st.lists(st.integers(0, 9), min_size=8, max_size=100)
FRACTIONS = st.floats(0.2, 0.6)


@given(
    LABELS,
    st.none() | LABELS,
    st.none() | LABELS,
    st.none() | FRACTIONS,
    st.just(0.0) | FRACTIONS,
    st.booleans(),
    st.integers(0, 99),
)
@settings(deadline=None)
def test_parts_are_disjoint_and_complete(train, validation, test, test_fraction, validation_fraction, stratify, seed):
    given_data = whole(train, test, validation)
    options = {"test_fraction": test_fraction, "validation_fraction": validation_fraction, "stratify": stratify}
    result = split(given_data, seed=seed, **options)
    assert everything(result) == everything(given_data)
    assert result.test is not None
    assert (result.validation is None) == (validation is None and validation_fraction == 0)
    assert everything(result) == everything(split(given_data, seed=seed, **options))


@given(LABELS, st.data())
def test_draw_gives_each_class_its_share(labels, data):
    targets = torch.tensor(labels)
    count = data.draw(st.integers(0, len(labels)))
    drawn, rest = draw(len(labels), count, targets, np.random.default_rng(0))
    assert len(drawn) == count
    assert sorted([*drawn, *rest]) == list(range(len(labels)))
    sizes, taken = Counter(labels), Counter(targets[drawn].tolist())
    if count <= len(labels) - len(sizes):
        assert all(taken[label] < size for label, size in sizes.items())
    if min(sizes.values()) > 1 and 2 * count <= len(labels):
        assert all(abs(taken[label] - count * size / len(labels)) <= 1 for label, size in sizes.items())


def test_its_own_parts_are_kept_untouched():
    given_data = whole([0, 1] * 5, [0, 1], [1, 0])
    result = split(given_data)
    assert result.train is given_data.train
    assert result.validation is given_data.validation
    assert result.test is given_data.test


def test_an_undivided_set_gives_a_fifth_to_test():
    result = split(whole([0, 1] * 50))
    assert (len(result.train), result.validation, len(result.test)) == (80, None, 20)


def test_a_test_fraction_pools_and_divides_again():
    result = split(whole([0, 1] * 40, [0, 1] * 10), test_fraction=0.5)
    assert len(result.train) == len(result.test) == 50
    assert min(numbers(result.test)) < 80


def test_validation_is_a_fraction_of_train():
    result = split(whole([0, 1] * 50), validation_fraction=0.25)
    assert (len(result.train), len(result.validation), len(result.test)) == (60, 20, 20)


def test_stratified_parts_keep_the_proportions_of_classes():
    result = split(whole([0] * 80 + [1] * 15 + [2] * 5), validation_fraction=0.25)
    assert Counter(result.test.targets.tolist()) == {0: 16, 1: 3, 2: 1}
    assert Counter(result.validation.targets.tolist()) == {0: 16, 1: 3, 2: 1}


def test_a_class_with_one_sample_stays_in_train():
    result = split(whole([0] * 30 + [1]), test_fraction=0.5, validation_fraction=0.5)
    assert 1 in result.train.targets.tolist()


def test_the_seed_decides():
    first, again, other = (split(whole([0, 1] * 50), seed=seed) for seed in (1, 1, 2))
    assert numbers(first.test) == numbers(again.test) != numbers(other.test)


def test_samples_keep_their_order():
    result = split(whole([0, 1] * 50), validation_fraction=0.2)
    assert numbers(result.train) == sorted(numbers(result.train))


def test_a_limit_keeps_a_stratified_sample_of_each_part():
    result = split(whole([0] * 90 + [1] * 10, [0] * 50), limit=20)
    assert Counter(result.train.targets.tolist()) == {0: 18, 1: 2}
    assert len(result.test) == 20
    assert len(split(whole([0] * 90, [0] * 5), limit=20).test) == 5


def test_regression_is_divided_without_strata():
    data = Splits(name="r", train=Tensors(torch.rand(10, 2), torch.rand(10)), shape=(2,), classes=None, outputs=1)
    assert len(split(data, test_fraction=0.3).test) == 3


@looped(
    ("options", "message"),
    [
        ({"test_fraction": 0.01}, "fraction"),
        ({"test_fraction": 0.99}, "leaves the train part empty"),
        ({"validation_fraction": 0.01}, "leaves the validation part empty"),
    ],
)
def test_impossible_splits_are_explained(options, message):
    with pytest.raises(DataError, match=message):
        split(whole([0, 1] * 10), **options)
