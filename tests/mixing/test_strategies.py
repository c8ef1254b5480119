import math
from math import ceil, log2

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from strategy_contract import StrategyContract
from wave_messages import messages, within

from tenfold.errors import ExperimentError
from tenfold.mixing import STRATEGIES, Strategy
from tenfold.mixing.round import CENTER, COLLECTIVES, Exchange, ExchangeVectors
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
    exchange_pattern,
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


law = settings(deadline=None, derandomize=True, max_examples=50)


def vectors(mine, theirs, gradients=(), squares=()):
    return ExchangeVectors(
        *(torch.tensor(values, dtype=torch.float32) for values in (mine, theirs, gradients, squares))
    )


def steps_with_exchange(strategy, until, field="sends"):
    exchanges = {step: strategy.exchange(0, step, 4) for step in range(1, until + 1)}
    return [step for step, exchange in exchanges.items() if exchange is not None and getattr(exchange, field)]


def test_the_downpour_server_runs_adagrad():
    server, push = Downpour(gamma=0.5), Exchange(CENTER, receives=False)
    pushed = vectors([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [3.0, -3.0, 0.0], [0.0, 0.0, 0.0])
    server.apply(push, pushed, 1)
    assert pushed.center_state.tolist() == [9, 9, 0]
    assert pushed.theirs.tolist() == [0.5, 2.5, 3.0]
    pushed.gradients.copy_(torch.tensor([4.0, 4.0, 0.0]))
    server.apply(push, pushed, 1)
    assert pushed.theirs.tolist() == pytest.approx([0.5 - 0.5 * 4 / 5, 2.5 - 0.5 * 4 / 5, 3.0])
    assert pushed.mine.tolist() == [0, 0, 0]


def test_a_downpour_fetch_copies_the_server():
    fetched = vectors([0.0], [7.0], [5.0], [1.0])
    Downpour().apply(Exchange(CENTER, sends=False), fetched, 1)
    assert (fetched.mine.tolist(), fetched.theirs.tolist(), fetched.center_state.tolist()) == ([7], [7], [1])


def test_a_gradient_too_small_to_square_moves_nothing_far():
    pushed = vectors([0.0], [0.0], [1e-30], [0.0])
    Downpour(gamma=1.0).apply(Exchange(), pushed, 1)
    assert abs(pushed.theirs.item()) < 1e-15


def test_downpour_pushes_and_fetches_in_its_own_time():
    downpour = Downpour(n_push=2, n_fetch=3)
    assert steps_with_exchange(downpour, 6, "sends") == [2, 4, 6]
    assert steps_with_exchange(downpour, 6, "receives") == [3, 6]
    assert downpour.exchange(0, 5, 4) is None


def test_replica_and_center_pull_at_each_other():
    pulled = vectors([4.0, 0.0], [0.0, 8.0])
    EASGD(alpha=0.25).apply(Exchange(), pulled, 2)
    assert pulled.mine.tolist() == [3, 2]
    assert pulled.theirs.tolist() == [1, 6]


@law
@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=10), st.floats(0.01, 1))
def test_an_elastic_exchange_keeps_the_sum(values, alpha):
    pulled = vectors(values, values[::-1])
    total = pulled.mine + pulled.theirs
    EASGD(alpha=alpha).apply(Exchange(), pulled, 2)
    torch.testing.assert_close(pulled.mine + pulled.theirs, total, rtol=1e-5, atol=1e-4)


def test_the_pull_of_easgd_follows_the_number_of_replicas_unless_it_is_given():
    assert EASGD().strength(9) == pytest.approx(0.1)
    assert EASGD(alpha=0.3).strength(9) == 0.3


def test_easgd_meets_the_center_every_tau_steps():
    assert steps_with_exchange(EASGD(tau=4), 9) == [4, 8]
    assert EASGD(tau=4).exchange(2, 4, 3) == Exchange(CENTER)


@law
@given(st.integers(1, 20), st.integers(0, 1000), st.integers(0, 5))
def test_even_ranks_ask_odd_ranks(n, k, seed):
    for rank in range(n):
        exchange = ADPSGD(seed=seed).exchange(rank, k, n)
        if rank % 2 or n == 1:
            assert exchange is None
        else:
            assert exchange.partner in range(1, n, 2)
            assert exchange == ADPSGD(seed=seed).exchange(rank, k, n)


def test_in_time_every_odd_rank_is_asked():
    assert {ADPSGD().exchange(0, k, 8).partner for k in range(100)} == {1, 3, 5, 7}


def test_a_pair_takes_its_mean():
    pair = vectors([1.0, 4.0], [3.0, 0.0])
    ADPSGD().apply(Exchange(1), pair, 2)
    assert pair.mine.tolist() == pair.theirs.tolist() == [2, 2]


@looped(
    ("wrong", "sentence"),
    [
        (lambda: Downpour(n_push=0), "n_push"),
        (lambda: Downpour(n_fetch=0), "n_fetch"),
        (lambda: Downpour(gamma=0), "gamma is 0; it must be more than 0"),
        (lambda: EASGD(alpha=2), "alpha is 2; it must be more than 0 and at most 1"),
        (lambda: EASGD(tau=0), "tau is 0; it must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(wrong, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        wrong()


COLUMNS = [Butterfly(), HoppingRing(), HoppingRing(hops="linear"), Ring(), Ring(sides=1)]


AFTER_LG_N_ROUNDS = {
    4: [0, 0, 0, 0.11, 0.50],
    6: [0, 0.22, 0.25, 0.30, 0.65],
    8: [0, 0, 0.25, 0.52, 0.79],
    12: [0, 0.21, 0.30, 0.69, 0.87],
    16: [0, 0, 0.53, 0.81, 0.93],
}


def consensus(strategy: Strategy, n: int, rounds: int) -> float:
    """Return || M_{rounds-1} ... M_1 M_0 - 11^T/n ||_2, the largest share of any disagreement that survives."""
    left = np.eye(n)
    for r in range(rounds):
        left = strategy.round(r, n).matrix() @ left
    return float(np.linalg.norm(left - 1 / n, ord=2))


@looped("n", AFTER_LG_N_ROUNDS)
def test_what_is_left_after_lg_n_rounds(n):
    left = [consensus(strategy, n, ceil(log2(n))) for strategy in COLUMNS]
    assert left == pytest.approx(AFTER_LG_N_ROUNDS[n], abs=0.0051)


def test_the_ends_of_the_scale():
    assert consensus(AllReduce(), 5, 1) == pytest.approx(0, abs=1e-12)
    assert consensus(NoMixing(), 5, 10) == pytest.approx(1)
    assert consensus(Ring(), 5, 0) == pytest.approx(1)
    assert consensus(NoMixing(), 1, 3) == pytest.approx(0)


def alike(n, *, with_costs=False):
    """Return the strategies that exchange the same as all-reduce."""
    wanted = exchange_pattern(STRATEGIES["allreduce"](), n, with_costs=with_costs)
    return {name for name in STRATEGIES if exchange_pattern(STRATEGIES[name](), n, with_costs=with_costs) == wanted}


def test_two_workers_have_one_way_to_average():
    assert {"allreduce", "butterfly", "ring", "hopping-ring", "gossip", "parameter-server"} <= alike(2)
    assert not {"none", "downpour", "easgd", "ad-psgd"} & alike(2)


def test_more_workers_have_several():
    assert not {"butterfly", "ring", "gossip", "none"} & alike(4)
    assert "parameter-server" in alike(4)


def test_a_server_has_its_own_price():
    assert "parameter-server" not in alike(4, with_costs=True)
