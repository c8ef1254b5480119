from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transport_contract import Join, TransportContract, everybody, ring

from tenfold.mixing import Round
from tenfold.transport import SingleWorkerTransport, average_in_rank_order, compute_shares

seeds = st.integers(0, 2**32 - 1)


def members_of(seed: int, count: int, numel: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    return (chance.standard_normal((count, numel)) * 10.0 ** chance.integers(-6, 6, (count, 1))).astype(np.float32)


def shares_of(seed: int, count: int) -> list[float]:
    return (np.random.default_rng(seed).dirichlet(np.ones(count))).tolist()


@given(seeds, st.integers(1, 7), st.integers(1, 50), st.booleans())
def test_each_operation_rounds_once_in_rank_order(seed: int, count: int, numel: int, weighted: bool) -> None:
    members = members_of(seed, count, numel)
    weights = shares_of(seed, count) if weighted else None
    by_hand = []
    for column in members.T:
        if weights is None:
            total = column[0]
            for value in column[1:]:
                total = np.float32(total + value)
            by_hand.append(np.float32(total * np.float32(1 / count)))
        else:
            total = np.float32(column[0] * np.float32(weights[0]))
            for value, weight in zip(column[1:], weights[1:], strict=True):
                total = np.float32(total + np.float32(value * np.float32(weight)))
            by_hand.append(total)
    out = np.empty(numel, np.float32)
    average_in_rank_order(list(members), weights, out)
    assert np.array_equal(out, np.array(by_hand, np.float32))


@given(seeds, st.integers(1, 6), st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_bits_depend_neither_on_the_cut_nor_on_the_library(
    seed: int, count: int, numel: int, cut: int, weighted: bool
) -> None:
    members = members_of(seed, count, numel)
    weights = shares_of(seed, count) if weighted else None
    whole = torch.empty(numel)
    average_in_rank_order(list(torch.from_numpy(members)), weights, whole)
    pieces = np.empty(numel, np.float32)
    for start in range(0, numel, cut):
        part = slice(start, start + cut)
        average_in_rank_order([member[part] for member in members], weights, pieces[part])
    assert np.array_equal(whole.numpy(), pieces)


@given(seeds, st.integers(1, 5), st.booleans())
def test_the_result_may_overwrite_a_member(seed: int, count: int, weighted: bool) -> None:
    members = members_of(seed, count, 17)
    weights = shares_of(seed, count) if weighted else None
    apart = np.empty(17, np.float32)
    average_in_rank_order(list(members), weights, apart)
    average_in_rank_order(list(members), weights, members[0])
    assert np.array_equal(members[0], apart)


def test_equal_weights_count_as_none() -> None:
    assert compute_shares(everybody(3), None, 0) is None
    assert compute_shares(everybody(3), [50, 50, 50], 1) is None
    assert compute_shares(ring(5, -1, 1), [7.0] * 5, 2) is None


def test_shares_are_those_of_the_sources() -> None:
    assert compute_shares(Round(((0, 2), (1,), (0, 2))), [1, 5, 3], 2) == pytest.approx((0.25, 0.75))
    assert compute_shares(ring(3, 1), [1, 2, 2], 1) == pytest.approx((0.75, 0.25))


def join(numel: int, dtype: torch.dtype, rank: int) -> SingleWorkerTransport:
    assert rank == 0
    return SingleWorkerTransport(numel, dtype)


class TestAlone(TransportContract):
    sizes = (1,)

    @contextmanager
    def world(self, size: int, numel: int, dtype: torch.dtype = torch.float32) -> Iterator[Join]:
        yield partial(join, numel, dtype)

    def run(self, size: int, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        way_in, *rest = arguments
        return [scenario(way_in, 0, *rest)]


def test_a_round_for_others_is_refused() -> None:
    with pytest.raises(ValueError, match="replicas"):
        SingleWorkerTransport(3).mix(everybody(2))
