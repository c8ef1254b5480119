"""The phases, priced on one full-duplex link per worker, against the closed forms."""

from collections import Counter
from math import ceil, floor, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from wave_messages import Message, Phases, phases_of, within

from tenfold.mixing.round import COLLECTIVES, Server, operation_waves

N = 5040 * 16  # divisible by every group size and power of two below
SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 12, 16]
POWERS = [2, 4, 8, 16]
OTHERS = [size for size in SIZES if size not in POWERS]


def cost(phases: Phases) -> tuple[float, float, float]:
    """Return how often latency, bytes sent and bytes added count: the busiest worker sets the pace of a phase."""
    a = b = c = 0
    for phase in phases:
        sent, received, added = Counter(), Counter(), Counter()
        for message in phase:
            sent[message.src] += message.nbytes
            received[message.dst] += message.nbytes
            added[message.dst] += message.nbytes * message.adds
        a += 1
        b += max(*sent.values(), *received.values())
        c += max(added.values())
    return a, b, c


def price(name: str, size: int) -> tuple[float, float, float]:
    return cost(within(COLLECTIVES[name], tuple(range(size)), N))


@looped("g", SIZES)
def test_ring(g):
    assert price("ring", g) == (2 * (g - 1), 2 * N * (g - 1) / g, N * (g - 1) / g)


@looped("g", SIZES)
def test_tree(g):
    depth = ceil(log2(g))
    assert price("tree", g) == (2 * depth, 2 * depth * N, depth * N)


@looped("g", POWERS)
def test_recursive_doubling(g):
    assert price("recursive-doubling", g) == (log2(g), log2(g) * N, log2(g) * N)


@looped("g", OTHERS)
def test_recursive_doubling_folds_other_sizes(g):
    lg = floor(log2(g))
    assert price("recursive-doubling", g) == (lg + 2, (lg + 2) * N, (lg + 1) * N)


@looped("g", POWERS)
def test_halving_doubling(g):
    assert price("halving-doubling", g) == (2 * log2(g), 2 * N * (g - 1) / g, N * (g - 1) / g)


@looped("g", OTHERS)
def test_halving_doubling_folds_other_sizes(g):
    core = 2 ** floor(log2(g))
    share = (core - 1) / core
    assert price("halving-doubling", g) == (2 * log2(core) + 2, (2 * share + 2) * N, (share + 1) * N)


@looped("g", SIZES)
@looped("servers", [1, 2, 4, 8])
def test_server(g, servers):
    phases = within(Server(servers), tuple(range(g)), N)
    assert cost(phases) == (2, 2 * N * max(1, g / servers), g * N / servers)


@pytest.mark.parametrize("name", list(COLLECTIVES))
@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    group=st.lists(st.integers(0, 99), min_size=1, max_size=20, unique=True).map(sorted).map(tuple),
    nbytes=st.integers(0, 999),
)
def test_any_group_and_any_number_of_bytes(name, group, nbytes):
    phases = within(COLLECTIVES[name], group, nbytes)
    assert bool(phases) == (len(group) > 1)
    for phase in phases:
        pairs = [(message.src, message.dst) for message in phase]
        assert len(set(pairs)) == len(pairs) > 0
        for message in phase:
            assert message.src != message.dst
            assert {rank for rank in message[:2] if rank >= 0} <= set(group)
            assert 0 <= message.nbytes <= nbytes


@pytest.mark.parametrize("name", list(COLLECTIVES))
@settings(deadline=None, derandomize=True, max_examples=50)
@given(count=st.integers(1, 4), size=st.integers(2, 20), nbytes=st.integers(0, 999))
def test_waves_over_many_groups_are_the_messages_of_each(name, count, size, nbytes):
    groups = np.arange(count * size).reshape(size, count).T
    collective = COLLECTIVES[name]
    waves = collective.waves(groups, nbytes)
    side_by_side = zip(*(within(collective, group, nbytes) for group in groups.tolist()), strict=True)
    assert phases_of(waves) == tuple(sum(phases, ()) for phases in side_by_side)
    sent = Counter()
    for wave in waves:
        assert np.ptp(wave.nbytes, axis=1).max() <= (1 if wave.times > 1 else nbytes)
        for src, total in zip(wave.src.ravel().tolist(), wave.sent().ravel().tolist(), strict=True):
            sent[src] += total
    listed = Counter()
    for phase in phases_of(waves):
        for message in phase:
            listed[message.src] += message.nbytes
    assert sent == listed


@looped("name", list(COLLECTIVES))
def test_a_hundred_thousand_members_take_few_waves(name):
    waves = COLLECTIVES[name].waves(np.arange(131_072)[None], 10**6)
    assert len(waves) <= 34
    assert sum(wave.times for wave in waves) == {"ring": 262_142, "recursive-doubling": 17, "server": 2}.get(name, 34)


def test_the_ring_passes_odd_bytes_on_without_losing_any():
    group = (0, 1, 2)
    phases = within(COLLECTIVES["ring"], group, 10)
    assert phases[0] == (Message(0, 1, 4, True), Message(1, 2, 3, True), Message(2, 0, 3, True))
    assert sum(message.nbytes for phase in phases for message in phase) == 2 * (len(group) - 1) * 10


OPERATIONS = {
    "all_reduce": lambda g: (2 * (g - 1), 2 * N * (g - 1) / g, N * (g - 1) / g),
    "reduce": lambda g: (ceil(log2(g)), ceil(log2(g)) * N, ceil(log2(g)) * N),
    "broadcast": lambda g: (ceil(log2(g)), ceil(log2(g)) * N, 0),
    "reduce_scatter": lambda g: (g - 1, (g - 1) * N, (g - 1) * N),
    "all_gather": lambda g: (g - 1, (g - 1) * N / g, 0),
    "gather": lambda g: (1, (g - 1) * N / g, 0),
    "scatter": lambda g: (1, (g - 1) * N, 0),
    "all_to_all": lambda g: (1, (g - 1) * N / g, 0),
    "barrier": lambda g: (ceil(log2(g)), 0, 0),
}
"""What operations of torch.distributed cost: how often latency, bytes sent and bytes added count."""


@pytest.mark.parametrize("name", OPERATIONS)
@looped("g", [3, 4, 7, 16])
def test_operations_of_torch_distributed(name, g):
    members = np.arange(g) + 5
    for root in (0, g - 1):
        waves = operation_waves(name, members, N, root)
        assert cost(phases_of(waves)) == OPERATIONS[name](g)
        assert {end for wave in waves for end in (*wave.src.ravel(), *wave.dst.ravel())} == set(members.tolist())


def test_two_swap_and_one_sends_nothing():
    assert cost(phases_of(operation_waves("all_reduce", np.arange(2), N))) == (1, N, N)
    assert operation_waves("all_reduce", np.array([3]), N) == ()
