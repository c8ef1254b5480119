import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped

from tenfold.errors import ExperimentError
from tenfold.mixing.round import CENTER, Exchange, ExchangeVectors
from tenfold.mixing.strategies import ADPSGD, EASGD, Downpour

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
