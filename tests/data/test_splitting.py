from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    RepeatedKFold,
    RepeatedStratifiedKFold,
    StratifiedGroupKFold,
    StratifiedKFold,
)

from tenfold.data import Splits, SubsetPart, Tensors, batch_sizes, batches, make_folds, make_shards, order
from tenfold.data.loading import as_splits
from tenfold.data.splitting import SHARD_KINDS, draw, split
from tenfold.errors import DataError, ExperimentError


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


law = settings(deadline=None, max_examples=40)


seeds = st.integers(0, 2**32 - 1)


def assert_same(ours, theirs):
    theirs = list(theirs)
    assert len(ours) == len(theirs)
    for fold, (train, validation) in zip(ours, theirs, strict=True):
        assert fold.train.tolist() == train.tolist()
        assert fold.validation.tolist() == validation.tolist()


@law
@given(samples=st.integers(10, 60), k=st.integers(2, 10), repeats=st.integers(1, 3), seed=seeds)
def test_plain_folds_are_those_of_scikit_learn(samples, k, repeats, seed):
    x = np.zeros(samples)
    assert_same(make_folds(samples, k, seed=seed), KFold(k, shuffle=True, random_state=seed).split(x))
    repeated = RepeatedKFold(n_splits=k, n_repeats=repeats, random_state=seed)
    assert_same(make_folds(samples, k, "plain", seed=seed, repeats=repeats), repeated.split(x))


@law
@given(each=st.integers(6, 15), classes=st.integers(2, 4), k=st.integers(2, 6), repeats=st.integers(1, 3), seed=seeds)
def test_stratified_folds_are_those_of_scikit_learn(each, classes, k, repeats, seed):
    labels = torch.arange(each * classes) % classes
    x = np.zeros(len(labels))
    assert_same(make_folds(labels, k, seed=seed), StratifiedKFold(k, shuffle=True, random_state=seed).split(x, labels))
    repeated = RepeatedStratifiedKFold(n_splits=k, n_repeats=repeats, random_state=seed)
    assert_same(make_folds(labels, k, seed=seed, repeats=repeats), repeated.split(x, labels))


@law
@given(groups=st.lists(st.integers(0, 30), min_size=40, max_size=60), k=st.integers(2, 4), seed=seeds)
def test_groups_are_those_of_scikit_learn_and_stay_together(groups, k, seed):
    names = np.asarray([*groups, *range(100, 108)])
    labels = torch.arange(len(names)) % 2
    x = np.zeros(len(names))
    theirs = StratifiedGroupKFold(k, shuffle=True, random_state=seed)
    ours = make_folds(labels, k, seed=seed, groups=names)
    assert_same(ours, theirs.split(x, labels, names))
    assert_same(
        make_folds(len(names), k, seed=seed, groups=names),
        GroupKFold(k, shuffle=True, random_state=seed).split(x, x, names),
    )
    assert all(not set(names[fold.train]) & set(names[fold.validation]) for fold in ours)


@law
@given(samples=st.integers(12, 60), k=st.integers(2, 6), repeats=st.integers(1, 3), seed=st.integers(0, 2**63 - 1))
def test_every_sample_is_validated_once_a_repeat(samples, k, repeats, seed):
    cut = make_folds(torch.arange(samples) % 2, k, repeats=repeats, seed=seed)
    assert [(fold.repeat, fold.fold) for fold in cut] == [
        (r, i) for r in range(1, repeats + 1) for i in range(1, k + 1)
    ]
    for repeat in range(repeats):
        mine = cut[repeat * k : (repeat + 1) * k]
        assert sorted(np.concatenate([fold.validation for fold in mine])) == list(range(samples))
        assert all(sorted([*fold.train, *fold.validation]) == list(range(samples)) for fold in mine)


@looped(
    ("arguments", "options", "sentence"),
    [
        ((3, 5), {}, r"parallel\.folds"),
        ((torch.arange(6), 2), {}, "stratified"),
        ((10, 2, "stratified"), {}, "fold_kind"),
        ((10, 2, "group"), {}, r'fold_kind = "group" needs data\.groups'),
        ((10, 3), {"groups": [1] * 5 + [2] * 5}, "10 training samples cannot be divided into 3 group folds"),
    ],
)
def test_what_cannot_be_cut_is_said(arguments, options, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        make_folds(*arguments, **options)


class TestGroupsInTheParts:
    def test_no_group_is_in_train_and_test(self):
        names = np.repeat(np.arange(20), 5)
        x = torch.arange(100.0)[:, None]
        parts = split(as_splits((x, torch.arange(100) % 2)), groups=names)
        train, test = set(parts.train.x[:, 0].long().tolist()), set(parts.test.x[:, 0].long().tolist())
        assert len(train) + len(test) == 100
        assert not {names[i] for i in train} & {names[i] for i in test}
        assert 20 <= len(test) < 30
        assert parts.groups.tolist() == [names[i] for i in sorted(train)]

    def test_groups_follow_a_limit(self):
        parts = split(as_splits((torch.randn(50, 2), torch.randn(50))), groups=list(range(50)), limit=10)
        assert len(parts.train) == len(parts.groups) == 10

    def test_a_single_group_cannot_be_divided(self):
        with pytest.raises(DataError, match="names a single group"):
            split(as_splits((torch.randn(20, 2), torch.randn(20))), groups=[1] * 20)

    @pytest.mark.parametrize("with_the_data", [False, True])
    @pytest.mark.parametrize(
        ("groups", "options", "sentence"),
        [
            ([0, 1] * 10, {"test_fraction": 0.3}, "cannot be pooled"),
            ([0, 1], {}, r"data\.groups has the shape \(2,\)"),
        ],
    )
    def test_groups_that_do_not_fit_are_explained(self, with_the_data, groups, options, sentence):
        data = as_splits({"train": (torch.randn(20, 2), torch.randn(20)), "test": (torch.randn(5, 2), torch.randn(5))})
        given = {} if with_the_data else {"groups": groups}
        with pytest.raises(DataError, match=sentence):
            split(replace(data, groups=np.asarray(groups) if with_the_data else None), **given, **options)

    def test_groups_that_come_with_the_data_are_kept(self):
        data = as_splits({"train": (torch.randn(20, 2), torch.randn(20)), "test": (torch.randn(5, 2), torch.randn(5))})
        assert split(replace(data, groups=np.arange(20))).groups.tolist() == list(range(20))


class TestPicked:
    def part(self):
        return Tensors(torch.arange(20.0)[:, None], torch.arange(20) % 3)

    def test_it_shows_samples_without_copying(self):
        whole = self.part()
        picked = SubsetPart(whole, [7, 3, 11])
        assert len(picked) == 3
        assert picked.targets.tolist() == [1, 0, 2]
        assert [x[:, 0].tolist() for x, _ in picked.batches([[0, 2], [1]])] == [[7, 11], [3]]
        whole.x[7] = 99
        assert next(picked.batches([[0]]))[0].item() == 99

    def test_of_the_picked_some(self):
        again = SubsetPart(self.part(), [7, 3, 11]).subset([2, 0])
        assert again.indices.tolist() == [11, 7]
        assert again.targets.tolist() == [2, 1]

    def test_it_is_told_by_data_and_choice(self):
        whole = self.part()
        prints = {SubsetPart(whole, [1, 2]).fingerprint(), SubsetPart(whole, [2, 1]).fingerprint(), whole.fingerprint()}
        assert len(prints) == 3
        assert SubsetPart(whole, [1, 2]).to("cpu").fingerprint() in prints


@st.composite
def divisions(draw: st.DrawFn) -> tuple[torch.Tensor, int, dict[str, object]]:
    labels = draw(st.lists(st.integers(0, 5), min_size=1, max_size=80))
    n = draw(st.integers(1, len(labels)))
    weights = np.array(draw(st.lists(st.floats(0.01, 1), min_size=n, max_size=n)))
    options = {
        "seed": draw(st.integers(0, 2**32)),
        "alpha": draw(st.floats(0.01, 100)),
        "fractions": (weights / weights.sum()).tolist(),
    }
    return torch.tensor(labels), n, options


@pytest.mark.parametrize("kind", SHARD_KINDS)
class TestEveryKind:
    @given(divisions())
    @settings(deadline=None, max_examples=50)
    def test_holds_each_sample_exactly_once_and_leaves_no_replica_empty(self, kind, parallel):
        labels, n, options = parallel
        parts = make_shards(labels, n, kind, **options)
        assert len(parts) == n
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
        assert min(len(part) for part in parts) >= 1

    def test_is_a_function_of_its_seed(self, kind):
        labels = torch.arange(300) % 10
        options = {"fractions": [0.5, 0.3, 0.2]}
        first, again = (make_shards(labels, 3, kind, seed=7, **options) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))

    def test_refuses_more_replicas_than_samples(self, kind):
        with pytest.raises(ExperimentError, match="replicas"):
            make_shards(torch.zeros(4, dtype=torch.int64), 5, kind)

    def test_one_replica_gets_everything(self, kind):
        (only,) = make_shards(torch.arange(10) % 2, 1, kind, fractions=[1.0])
        assert sorted(only) == list(range(10))


@pytest.mark.parametrize("kind", ["iid", "contiguous"])
def test_sizes_are_near_equal(kind):
    assert sorted(len(part) for part in make_shards(11, 4, kind)) == [2, 3, 3, 3]


def test_contiguous_slices_in_order():
    assert [part.tolist() for part in make_shards(5, 2, "contiguous")] == [[0, 1, 2], [3, 4]]


def test_another_seed_gives_other_shards():
    assert not np.array_equal(make_shards(100, 2, seed=0)[0], make_shards(100, 2, seed=1)[0])


def test_fractions_are_kept():
    assert [len(part) for part in make_shards(1000, 3, "fractions", fractions=[0.5, 0.3, 0.2])] == [500, 300, 200]


def test_smaller_alpha_skews_more():
    labels = torch.arange(1000) % 10

    def largest_share(alpha: float) -> float:
        parts = make_shards(labels, 5, "label-skew", alpha=alpha)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert largest_share(0.05) > largest_share(0.5) > largest_share(100)


@looped(
    ("arguments", "message"),
    [
        ({"targets_or_n": 9, "kind": "label-skew"}, "need class labels"),
        ({"targets_or_n": torch.rand(9), "kind": "label-skew"}, "need class labels"),
    ],
)
def test_wrong_divisions_are_explained(arguments, message):
    with pytest.raises(ExperimentError, match=message):
        make_shards(n=3, **arguments)


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=60, unique=True),
    st.integers(0, 2**63),
    st.integers(0, 10_000),
    st.integers(0, 1000),
    st.integers(1, 70),
)
def test_an_epoch_visits_each_sample_of_the_shard_once(samples, seed, epoch, replica, batch_size):
    shard = np.array(samples, dtype=np.int64)
    visited = order(shard, seed, epoch, replica)
    assert visited.dtype == torch.int64
    assert sorted(visited.tolist()) == sorted(samples)
    assert torch.equal(visited, order(shard, seed, epoch, replica))
    cut = batches(visited, batch_size)
    assert torch.equal(torch.cat(cut), visited)
    assert [len(batch) for batch in cut[:-1]] == [batch_size] * (len(cut) - 1)
    assert 1 <= len(cut[-1]) <= batch_size + 1


@given(st.integers(1, 300), st.integers(1, 70))
def test_no_batch_has_a_single_sample_unless_there_is_but_one(samples, batch_size):
    sizes = batch_sizes(samples, batch_size)
    assert sum(sizes) == samples
    if samples > 1 and batch_size > 1:
        assert min(sizes) > 1
        assert max(sizes) <= batch_size + 1


@looped(("samples", "sizes"), [(0, []), (1, [1]), (3, [3]), (4, [4]), (5, [5]), (6, [4, 2]), (8, [4, 4]), (9, [4, 5])])
def test_a_sample_left_over_joins_the_batch_before_it(samples, sizes):
    assert batch_sizes(samples, 4) == sizes


def test_seed_epoch_and_replica_each_change_the_order():
    shard = np.arange(100)
    orders = [
        order(shard, *key) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1 + (5 << 32), 0, 0), (1, 5, 0)]
    ]
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)


def test_the_order_stays_the_same_between_releases():
    assert order(np.arange(8), 1, 2, 3).tolist() == [6, 3, 7, 1, 4, 0, 2, 5]


def test_an_empty_order_has_no_batches():
    assert batches(torch.tensor([], dtype=torch.int64), 4) == []


def test_neither_shards_nor_order_touch_the_global_generators():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    order(make_shards(50, 5)[0], 0, 0, 0)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
