"""Folds: the very numbers of scikit-learn's splitters, every sample validated once a repeat, groups kept together."""

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

from tenfold.data import SubsetPart, Tensors, make_folds
from tenfold.data.splitting import split
from tenfold.data.user_data import as_splits
from tenfold.errors import DataError, ExperimentError

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
        ((10, 3), {"groups": [1] * 5 + [2] * 5}, "10 training samples cannot be cut into 3 group folds"),
        ((10, 2, "grupp"), {}, "group"),
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
