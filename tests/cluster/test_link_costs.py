"""What rounds cost on links, against every closed form."""

from dataclasses import replace
from math import ceil, floor, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from wave_messages import messages

from tenfold.cluster import LINKS, Cluster
from tenfold.errors import ExperimentError
from tenfold.mixing import STRATEGIES
from tenfold.mixing.round import COLLECTIVES, Server, exact_round, group_round, idle_round, shifted_round

LATENCY, BANDWIDTH, ADDING = 1e-3, 1e6, 3e-7
A, B, C = LATENCY, 1 / BANDWIDTH, ADDING
LINK = {"latency": LATENCY, "bandwidth": BANDWIDTH}
N = 5040 * 16
SIZES = [2, 3, 4, 5, 7, 8, 12, 16, 30]
law = settings(deadline=None, derandomize=True, max_examples=60)


def cost(round_, nbytes=N, **fields):
    n = len(round_.sources)
    return Cluster.of(n, LINK, adding=ADDING, **fields).round_cost(n)(round_, nbytes)


def port(rank, link):
    return rank, link if rank >= 0 else 0


def by_enumeration(cluster, round_, nbytes):
    """RunCost message by message, with dictionaries: the slow way for clusters of one worker a node."""
    wiring = cluster.wiring(len(round_.sources))
    member = {rank: g for g, group in enumerate(round_.groups) for rank in group}
    totals = dict.fromkeys(member.values(), 0.0)
    for phase in messages(round_, nbytes):
        leaving, entering, added, slowest = {}, {}, {}, {}
        links = [wiring.links(np.array([m.src]), np.array([m.dst]))[0] for m in phase]
        for message, link in zip(phase, links, strict=True):
            seconds = message.nbytes * wiring.per_byte[link]
            out, into = port(message.src, link), port(message.dst, link)
            leaving[out] = leaving.get(out, 0) + seconds
            entering[into] = entering.get(into, 0) + seconds
            added[message.dst] = added.get(message.dst, 0) + message.nbytes * message.adds
        for message, link in zip(phase, links, strict=True):
            busy = max(leaving[port(message.src, link)], entering[port(message.dst, link)])
            total = wiring.latency[link] + busy + added[message.dst] * wiring.adding
            group = member[message.src if message.src >= 0 else message.dst]
            slowest[group] = max(slowest.get(group, 0), total)
        for group, seconds in slowest.items():
            totals[group] += seconds
    return np.array([totals[member[rank]] for rank in range(len(round_.sources))])


class TestClosedForms:
    @looped("g", [size for size in SIZES if size > 2])
    def test_ring(self, g):
        share = ceil(N / g)
        assert cost(exact_round(g, COLLECTIVES["ring"])) == pytest.approx(
            2 * (g - 1) * (A + share * B) + (g - 1) * share * C
        )

    @looped("g", [3, 4, 5, 8, 12, 16])
    def test_ring_by_the_formula(self, g):
        expected = 2 * (g - 1) * A + 2 * N * (g - 1) / g * B + N * (g - 1) / g * C
        assert cost(exact_round(g, COLLECTIVES["ring"])) == pytest.approx(expected)

    @looped("g", [size for size in SIZES if size > 2])
    def test_tree(self, g):
        depth = ceil(log2(g))
        assert cost(exact_round(g, COLLECTIVES["tree"])) == pytest.approx(2 * depth * (A + N * B) + depth * N * C)

    @looped("g", [size for size in SIZES if size > 2])
    def test_recursive_doubling(self, g):
        lg, power = floor(log2(g)), g & (g - 1) == 0
        expected = lg * (A + N * B + N * C) if power else (lg + 2) * (A + N * B) + (lg + 1) * N * C
        assert cost(exact_round(g, COLLECTIVES["recursive-doubling"])) == pytest.approx(expected)

    @looped("g", [size for size in SIZES if size > 2])
    def test_halving_doubling(self, g):
        core, folds = 2 ** floor(log2(g)), g & (g - 1) != 0
        share = (core - 1) / core
        expected = (2 * log2(core) + 2 * folds) * A + (2 * share + 2 * folds) * N * B + (share + folds) * N * C
        assert cost(exact_round(g, COLLECTIVES["halving-doubling"])) == pytest.approx(expected)

    @pytest.mark.parametrize("name", ["butterfly", "hopping-ring", "gossip"])
    def test_pairs_and_one_sided_rings(self, name):
        assert cost(STRATEGIES[name]().round(0, 8)) == pytest.approx(A + N * B + N * C)
        assert cost(shifted_round(8, (-1,))) == pytest.approx(A + N * B + N * C)

    def test_a_two_sided_ring_shares_the_port(self):
        assert cost(shifted_round(8, (-1, 1))) == pytest.approx(A + 2 * N * B + 2 * N * C)

    @looped("servers", [1, 2, 4])
    @looped("faster", [1, 3, 100])
    def test_parameter_server(self, servers, faster):
        g = 12
        server = {"latency": LATENCY, "bandwidth": BANDWIDTH * faster}
        expected = 2 * A + 2 * N * max(B, g / servers * B / faster) + g * N / servers * C
        assert cost(exact_round(g, Server(servers)), server=server) == pytest.approx(expected)

    @pytest.mark.parametrize("times", [0.1, 10])
    def test_a_far_server_is_far_from_everybody(self, times):
        server = {"latency": times * LATENCY, "bandwidth": 12 * BANDWIDTH}
        expected = 2 * max(1, times) * A + 2 * N * B + 12 * N * C
        assert cost(exact_round(12, Server(1)), server=server) == pytest.approx(expected)

    def test_nothing_to_do_costs_nothing(self):
        assert cost(idle_round(4)) == 0.0
        assert cost(exact_round(1)) == 0.0

    def test_a_ring_among_many_thousands(self):
        g = 131_072
        expected = 2 * (g - 1) * A + 2 * (g - 1) * B + (g - 1) * C
        assert cost(exact_round(g), nbytes=g) == pytest.approx(expected)


class TestEnumeration:
    @law
    @given(
        algorithm=st.sampled_from(list(COLLECTIVES)),
        sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
        nbytes=st.integers(0, 10**6),
        fast=st.integers(1, 20),
    )
    def test_waves_cost_what_their_messages_cost(self, algorithm, sizes, nbytes, fast):
        n = sum(sizes)
        ends = np.cumsum(sizes)
        groups = tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True))
        round_ = replace(group_round(groups), collective=COLLECTIVES[algorithm])
        cluster = Cluster(
            groups=[{"name": "fast", "count": fast, "link": "10gbe"}, {"name": "slow", "count": n, "link": LINK}],
            between=[{"groups": ["fast", "slow"], "link": "lte"}],
        )
        got = np.broadcast_to(cluster.round_cost(n)(round_, nbytes), n)
        exact = by_enumeration(cluster, round_, nbytes)
        phases = len(messages(round_, nbytes))
        a_byte = LINKS["lte"].per_byte + cluster.adding
        assert (got >= exact - 1e-12).all()
        np.testing.assert_allclose(got, exact, rtol=1e-9, atol=phases * a_byte)

    @pytest.mark.parametrize("n", [4, 6, 9])
    def test_bytes_that_divide_evenly_are_priced_to_the_byte(self, n):
        cluster = Cluster(groups=[{"name": "a", "count": 3, "link": "1gbe"}, {"name": "b", "count": n, "link": "wifi"}])
        got = cluster.round_cost(n)(exact_round(n), 36 * 1000)
        np.testing.assert_allclose(np.broadcast_to(got, n), by_enumeration(cluster, exact_round(n), 36 * 1000))


class TestSharing:
    def test_each_pair_pays_for_its_own_link(self):
        cluster = Cluster(
            groups=[{"name": "fast", "count": 2, "link": "100gbe"}, {"name": "slow", "count": 2, "link": "wifi"}]
        )
        seconds = cluster.round_cost(4)(group_round(((0, 1), (2, 3))), 10**6)
        assert seconds[0] == seconds[1] < seconds[2] == seconds[3]

    def test_who_rests_pays_nothing(self):
        assert cost(group_round(((0, 1), (2,)))).tolist() == pytest.approx([A + N * B + N * C] * 2 + [0])

    def test_workers_of_a_node_share_its_port(self):
        group = {"count": 2, "workers": 2, "cores": 2, "link": LINK}
        across, inside = group_round(((0, 2), (1, 3))), group_round(((0, 1), (2, 3)))
        shared = Cluster(groups=[group], adding=0.0)
        apart = Cluster(groups=[group | {"shared_port": False}], adding=0.0)
        assert shared.round_cost(4)(across, N) == pytest.approx(A + 2 * N * B)
        assert apart.round_cost(4)(across, N) == pytest.approx(A + N * B)
        memory = LINKS["shared-memory"]
        assert shared.round_cost(4)(inside, N) == pytest.approx(memory.latency + N * memory.per_byte)

    def test_a_line_between_groups_can_be_shared(self):
        groups = [{"name": "a", "count": 4, "link": "10gbe"}, {"name": "b", "count": 4, "link": "10gbe"}]
        across = group_round(tuple((rank, rank + 4) for rank in range(4)))
        line = {"groups": ["a", "b"], "link": LINK}
        alone = Cluster(groups=groups, between=[line], adding=0.0)
        shared = Cluster(groups=groups, between=[line | {"shared": True}], adding=0.0)
        assert alone.round_cost(8)(across, N) == pytest.approx(A + N * B)
        assert shared.round_cost(8)(across, N) == pytest.approx(A + 4 * N * B)

    def test_a_ring_pays_at_the_slow_places_only(self):
        cluster = Cluster(
            groups=[{"name": "fast", "count": 6, "link": "100gbe"}, {"name": "slow", "count": 2, "link": "wifi"}]
        )
        seconds = cluster.round_cost(8)(shifted_round(8, (-1, 1)), 10**6)
        assert seconds[2] < seconds[6] / 50

    def test_a_round_of_another_size_is_refused(self):
        with pytest.raises(ExperimentError, match="replicas"):
            Cluster.of(4).round_cost(4)(exact_round(3), 8)


class TestExchanges:
    def test_with_the_center_one_way_follows_the_other(self):
        exchange = Cluster.of(4, LINK, adding=ADDING).round_cost(4).exchange
        assert exchange(0, -1, N, 0) == pytest.approx(A + N * B + N * C)
        assert exchange(0, -1, 0, N) == pytest.approx(A + N * B)
        assert exchange(3, -1, N, N) == pytest.approx(2 * A + 2 * N * B + N * C)
        assert exchange(3, -1, 0, 0) == 0.0

    def test_between_workers_both_ways_go_at_once(self):
        exchange = Cluster.of(4, LINK, adding=ADDING).round_cost(4).exchange
        assert exchange(0, 1, N, N) == pytest.approx(A + N * B + N * C)
