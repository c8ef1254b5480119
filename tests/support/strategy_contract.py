"""What every strategy must keep, whatever it does."""

import pickle
from collections.abc import Callable

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from looped import looped
from wave_messages import messages

from tenfold.mixing import Round, Strategy

SIZES = range(1, 10)
NBYTES = 2520 * 4
law = settings(
    deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.differing_executors]
)


def weights_for(n: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 10_000), min_size=n, max_size=n)


def heard(round_: Round) -> list[set[int]]:
    """Return whose numbers have reached each worker when all messages have arrived."""
    known = {rank: {rank} for rank in range(round_.n)}
    for phase in messages(round_, NBYTES):
        before = {rank: set(who) for rank, who in known.items()}
        for message in phase:
            known.setdefault(message.dst, set()).update(before[message.src])
    return [known[rank] for rank in range(round_.n)]


class StrategyContract:
    strategy: Strategy
    exact_after: Callable[[int], int | None] = staticmethod(lambda n: None)
    """After how many rounds n replicas have the exact mean; None where that is not promised."""

    def rounds(self, n: int) -> list[Round]:
        return [self.strategy.round(r, n) for r in range((self.strategy.period(n) or 4) + 1)]

    @looped("n", SIZES)
    def test_sources_are_sorted_and_hold_their_own_rank(self, n):
        for round_ in self.rounds(n):
            assert round_.n == n
            for rank, read in enumerate(round_.sources):
                assert rank in read
                assert list(read) == sorted(set(read))
                assert set(read) <= set(range(n))

    @law
    @given(st.data(), st.integers(1, 24), st.integers(0, 10_000))
    def test_rows_sum_to_one_and_the_weighted_mean_is_kept(self, data, n, r):
        weights = data.draw(weights_for(n))
        matrix = self.strategy.round(r, n).matrix(weights)
        assert (matrix >= 0).all()
        np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-12)
        if any(weights):
            np.testing.assert_allclose(np.array(weights) @ matrix, weights, rtol=1e-9, atol=1e-9)

    @looped("n", SIZES)
    def test_without_weights_the_matrix_is_doubly_stochastic_and_plain(self, n):
        for round_ in self.rounds(n):
            matrix = round_.matrix()
            np.testing.assert_allclose(matrix.sum(axis=0), 1, rtol=1e-12)
            np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-12)
            assert np.array_equal(matrix, round_.matrix([7] * n))
            for rank, read in enumerate(round_.sources):
                assert {matrix[rank, source] for source in read} == {1 / len(read)}

    @looped("n", SIZES)
    def test_sources_are_a_partition_into_groups_or_equally_many(self, n):
        for round_ in self.rounds(n):
            if round_.groups is None:
                assert len({len(read) for read in round_.sources}) == 1
            else:
                assert sorted(rank for group in round_.groups for rank in group) == list(range(n))
                for group in round_.groups:
                    assert {round_.sources[rank] for rank in group} == {group}

    @looped("n", SIZES)
    def test_partners_are_mutual(self, n):
        for round_ in self.rounds(n):
            for rank in range(n):
                assert rank not in round_.partners(rank)
                assert set(round_.sources[rank]) - {rank} <= set(round_.partners(rank))
                assert all(rank in round_.partners(other) for other in round_.partners(rank))

    @looped("n", SIZES)
    def test_messages_carry_exactly_what_the_sources_need(self, n):
        for round_ in self.rounds(n):
            assert heard(round_) == [set(read) for read in round_.sources]
            assert (messages(round_, NBYTES) == ()) == round_.is_idle
            assert all(message.src != message.dst for phase in messages(round_, NBYTES) for message in phase)

    @looped("n", SIZES)
    def test_the_same_question_has_the_same_answer_everywhere(self, n):
        again = pickle.loads(pickle.dumps(self.strategy))
        assert again == self.strategy
        assert [again.round(r, n) for r in range(5)] == [self.strategy.round(r, n) for r in range(5)]
        assert hash(again.round(3, n)) == hash(self.strategy.round(3, n))

    @looped("n", SIZES)
    def test_the_pattern_repeats_after_its_period(self, n):
        period = self.strategy.period(n)
        if period is None:
            assert len({self.strategy.round(r, n) for r in range(20)}) > 1
        else:
            assert period >= 1
            assert all(self.strategy.round(r, n) == self.strategy.round(r + period, n) for r in range(period + 1))

    @looped("n", SIZES)
    def test_the_final_round_is_the_exact_mean(self, n):
        final = self.strategy.final(n)
        assert final.sources == (tuple(range(n)),) * n
        weights = np.arange(1, n + 1)
        np.testing.assert_allclose(final.matrix(weights), np.tile(weights / weights.sum(), (n, 1)))

    def test_one_replica_has_nothing_to_do(self):
        assert all(round_.is_idle for round_ in self.rounds(1))
        assert self.strategy.final(1).is_idle

    @looped("n", [*SIZES, 12, 16, 30])
    def test_the_mean_outlives_many_rounds_and_is_reached_when_promised(self, n):
        rounds = self.exact_after(n)
        product = np.eye(n)
        for r in range(5 if rounds is None else rounds):
            product = self.strategy.round(r, n).matrix() @ product
        np.testing.assert_allclose(product.mean(axis=0), 1 / n)
        if rounds is not None:
            np.testing.assert_allclose(product, np.full((n, n), 1 / n), atol=1e-12)
