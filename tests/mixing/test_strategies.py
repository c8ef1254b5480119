import math

import pytest
from looped import looped
from strategy_contract import StrategyContract
from wave_messages import messages, within

from tenfold.errors import ExperimentError
from tenfold.mixing import STRATEGIES
from tenfold.mixing.collectives import COLLECTIVES
from tenfold.mixing.strategies import (
    ADPSGD,
    EASGD,
    AllReduce,
    Butterfly,
    Downpour,
    Gossip,
    Hierarchical,
    HoppingRing,
    NoMixing,
    ParameterServer,
    Ring,
    prime_factors,
)


def one_round(n: int) -> int:
    return 1


def lg_if_power_of_two(n: int) -> int | None:
    return int(math.log2(n)) if n & (n - 1) == 0 else None


class TestAllReduce(StrategyContract):
    strategy = AllReduce()
    exact_after = staticmethod(one_round)

    @looped("algorithm", ["ring", "tree", "recursive-doubling", "halving-doubling", "server"])
    def test_the_algorithm_changes_the_messages_and_not_the_result(self, algorithm):
        round_ = AllReduce(algorithm=algorithm).round(0, 6)
        assert round_.sources == AllReduce().round(0, 6).sources
        assert messages(round_, 600) == within(COLLECTIVES[algorithm], tuple(range(6)), 600)

    def test_an_unknown_algorithm_is_named(self):
        with pytest.raises(ExperimentError, match="ring"):
            AllReduce(algorithm="rign")


class TestTreeAllReduce(StrategyContract):
    strategy = AllReduce(algorithm="tree")
    exact_after = staticmethod(one_round)


class TestButterfly(StrategyContract):
    strategy = Butterfly()
    exact_after = staticmethod(lambda n: len(prime_factors(n)))

    @looped("n", [2, 4, 8, 16, 32])
    def test_powers_of_two_give_the_xor_butterfly(self, n):
        lg = int(math.log2(n))
        assert self.strategy.period(n) == lg
        for r in range(2 * lg):
            expected = tuple(tuple(sorted((i, i ^ (1 << r % lg)))) for i in range(n))
            assert self.strategy.round(r, n).sources == expected

    def test_six_replicas_form_pairs_and_then_triples(self):
        assert self.strategy.round(0, 6).groups == ((0, 1), (2, 3), (4, 5))
        assert self.strategy.round(1, 6).groups == ((0, 2, 4), (1, 3, 5))

    def test_a_prime_number_is_an_all_reduce(self):
        assert self.strategy.round(5, 7) == AllReduce().round(5, 7)

    @looped("n", range(1, 60))
    def test_prime_factors_multiply_to_n(self, n):
        factors = prime_factors(n)
        assert math.prod(factors) == n
        assert list(factors) == sorted(factors)
        assert all(factor % divisor for factor in factors for divisor in range(2, factor))


class TestRing(StrategyContract):
    strategy = Ring()
    exact_after = staticmethod(lambda n: 1 if n <= 3 else None)

    def test_each_reads_both_neighbors(self):
        assert self.strategy.round(0, 5).sources == ((0, 1, 4), (0, 1, 2), (1, 2, 3), (2, 3, 4), (0, 3, 4))

    def test_two_replicas_take_the_mean_of_two(self):
        assert self.strategy.round(0, 2).sources == ((0, 1), (0, 1))
        assert self.strategy.round(0, 2).matrix().tolist() == [[0.5, 0.5], [0.5, 0.5]]


class TestOneSidedRing(StrategyContract):
    strategy = Ring(sides=1)
    exact_after = staticmethod(lambda n: 1 if n <= 2 else None)

    def test_each_reads_the_one_before(self):
        assert self.strategy.round(0, 4).sources == ((0, 3), (0, 1), (1, 2), (2, 3))

    def test_other_sides_are_refused(self):
        with pytest.raises(ExperimentError, match="sides is 3; it must be 1 or 2"):
            Ring(sides=3)


class TestHoppingRing(StrategyContract):
    strategy = HoppingRing()
    exact_after = staticmethod(lg_if_power_of_two)

    def test_the_hop_doubles_and_starts_again(self):
        assert [self.strategy.hop(r, 12) for r in range(6)] == [1, 2, 4, 8, 1, 2]
        assert self.strategy.round(1, 5).sources[0] == (0, 3)

    def test_half_way_round_are_pairs(self):
        assert self.strategy.round(2, 8).groups == ((0, 4), (1, 5), (2, 6), (3, 7))


class TestLinearHoppingRing(StrategyContract):
    strategy = HoppingRing(hops="linear")

    def test_the_hop_grows_by_one(self):
        assert [self.strategy.hop(r, 5) for r in range(6)] == [1, 2, 3, 4, 1, 2]

    def test_other_hops_are_refused(self):
        with pytest.raises(ExperimentError, match="square"):
            HoppingRing(hops="square")


class TestGossip(StrategyContract):
    strategy = Gossip(seed=3)
    exact_after = staticmethod(lambda n: 1 if n <= 2 else None)

    @looped("n", range(2, 12))
    def test_all_meet_somebody_and_an_odd_one_rests(self, n):
        for r in range(10):
            sizes = sorted(map(len, self.strategy.round(r, n).groups))
            assert sizes == [1] * (n % 2) + [2] * (n // 2)

    def test_pairs_never_change_between_versions(self):
        assert Gossip(seed=0).matching(0, 8).tolist() == [[4, 0], [3, 1], [5, 2], [7, 6]]
        assert Gossip(seed=0).matching(1, 7).tolist() == [[0, 6], [2, 1], [4, 3]]

    def test_over_time_everyone_meets_everyone(self):
        met = {group for r in range(100) for group in self.strategy.round(r, 6).groups}
        assert len(met) == 15

    def test_another_seed_draws_other_pairs(self):
        assert any(Gossip(seed=4).round(r, 8) != self.strategy.round(r, 8) for r in range(5))


class TestHierarchical(StrategyContract):
    strategy = Hierarchical(node_size=3, outer_every=3)
    exact_after = staticmethod(lambda n: 3)

    def test_nodes_average_apart_and_meet_every_third_round(self):
        nodes = ((0, 1, 2), (3, 4, 5), (6,))
        everyone = (tuple(range(7)),)
        assert [self.strategy.round(r, 7).groups for r in range(4)] == [nodes, nodes, everyone, nodes]

    @pytest.mark.parametrize(
        ("options", "sentence"), [({"node_size": 0}, "node_size is 0"), ({"outer_every": 0}, "outer_every is 0")]
    )
    def test_periods_below_one_are_refused(self, options, sentence):
        with pytest.raises(ExperimentError, match=f"{sentence}; it must be at least 1"):
            Hierarchical(**options)


class TestParameterServer(StrategyContract):
    strategy = ParameterServer()
    exact_after = staticmethod(one_round)

    def test_even_two_workers_go_through_the_server(self):
        push, pull = messages(self.strategy.round(0, 2), 100)
        assert {message.dst for message in push} == {-1}
        assert {message.src for message in pull} == {-1}

    def test_no_servers_are_refused(self):
        with pytest.raises(ExperimentError, match="servers"):
            ParameterServer(servers=0)


class TestThreeParameterServers(StrategyContract):
    strategy = ParameterServer(servers=3)
    exact_after = staticmethod(one_round)


class TestNoMixing(StrategyContract):
    strategy = NoMixing()

    def test_all_rounds_are_idle(self):
        assert all(self.strategy.round(r, 5).is_idle for r in range(5))


class TestDownpour(StrategyContract):
    strategy = Downpour(n_push=2, n_fetch=3)


class TestEASGD(StrategyContract):
    strategy = EASGD()


class TestADPSGD(StrategyContract):
    strategy = ADPSGD(seed=1)


def test_the_registry_knows_every_strategy_by_its_own_name():
    assert list(STRATEGIES) == [
        "allreduce",
        "butterfly",
        "ring",
        "hopping-ring",
        "gossip",
        "hierarchical",
        "parameter-server",
        "none",
        "downpour",
        "easgd",
        "ad-psgd",
    ]
    assert all(STRATEGIES[name].name == name for name in STRATEGIES)
    assert {name for name in STRATEGIES if STRATEGIES[name].asynchronous} == {"downpour", "easgd", "ad-psgd"}


def test_an_unknown_strategy_is_answered_with_the_nearest():
    with pytest.raises(ExperimentError, match="butterfly"):
        STRATEGIES["buterfly"]
