import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped

from tenfold.catalog import SHARD_KINDS
from tenfold.data import batch_sizes, batches, make_shards, order
from tenfold.errors import ExperimentError


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
        ({"targets_or_n": 9, "kind": "contigous"}, "did you mean 'contiguous'"),
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
