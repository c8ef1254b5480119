import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.errors import ExperimentError
from tenfold.mixing.strategies.ad_psgd import ADPSGD
from tenfold.mixing.strategies.downpour import Downpour
from tenfold.mixing.strategies.easgd import EASGD

law = settings(deadline=None, derandomize=True, max_examples=50)


def test_the_downpour_server_runs_adagrad():
    server, w, accum = Downpour(gamma=0.5), torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)
    server.server_update(w, torch.tensor([3.0, -3.0, 0.0]), accum)
    assert accum.tolist() == [9, 9, 0]
    assert w.tolist() == [0.5, 2.5, 3.0]
    server.server_update(w, torch.tensor([4.0, 4.0, 0.0]), accum)
    assert w.tolist() == pytest.approx([0.5 - 0.5 * 4 / 5, 2.5 - 0.5 * 4 / 5, 3.0])


def test_a_gradient_too_small_to_square_moves_nothing_far():
    w = torch.zeros(1)
    Downpour(gamma=1.0).server_update(w, torch.tensor([1e-30]), torch.zeros(1))
    assert abs(w.item()) < 1e-15


def test_downpour_pushes_and_fetches_in_its_own_time():
    downpour = Downpour(n_push=2, n_fetch=3)
    assert [step for step in range(1, 7) if downpour.pushes(step)] == [2, 4, 6]
    assert [step for step in range(1, 7) if downpour.fetches(step)] == [3, 6]


def test_replica_and_centre_pull_at_each_other():
    x, centre = torch.tensor([4.0, 0.0]), torch.tensor([0.0, 8.0])
    EASGD(alpha=0.25).exchange(x, centre, 2)
    assert x.tolist() == [3, 2]
    assert centre.tolist() == [1, 6]


@law
@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=10), st.floats(0.01, 1))
def test_an_elastic_exchange_keeps_the_sum(values, alpha):
    x, centre = torch.tensor(values), torch.tensor(values[::-1])
    total = x + centre
    EASGD(alpha=alpha).exchange(x, centre, 2)
    torch.testing.assert_close(x + centre, total, rtol=1e-5, atol=1e-4)


def test_the_pull_of_easgd_follows_the_number_of_replicas_unless_it_is_given():
    assert EASGD().strength(9) == pytest.approx(0.1)
    assert EASGD(alpha=0.3).strength(9) == 0.3


def test_easgd_meets_the_centre_every_tau_steps():
    assert [step for step in range(1, 10) if EASGD(tau=4).exchanges(step)] == [4, 8]


@law
@given(st.integers(1, 20), st.integers(0, 1000), st.integers(0, 5))
def test_even_ranks_ask_odd_ranks(n, k, seed):
    for rank in range(n):
        partner = ADPSGD(seed=seed).partner(rank, k, n)
        if rank % 2 or n == 1:
            assert partner is None
        else:
            assert partner in range(1, n, 2)
            assert partner == ADPSGD(seed=seed).partner(rank, k, n)


def test_in_time_every_odd_rank_is_asked():
    assert {ADPSGD().partner(0, k, 8) for k in range(100)} == {1, 3, 5, 7}


def test_a_pair_takes_its_mean():
    x, y = torch.tensor([1.0, 4.0]), torch.tensor([3.0, 0.0])
    ADPSGD().exchange(x, y)
    assert x.tolist() == y.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Downpour(n_push=0), "n_push is 0; it takes at least 1"),
        (lambda: Downpour(n_fetch=0), "n_fetch is 0; it takes at least 1"),
        (lambda: Downpour(gamma=0), "gamma is 0; it takes more than 0"),
        (lambda: EASGD(alpha=2), "alpha is 2; it takes more than 0 and at most 1"),
        (lambda: EASGD(tau=0), "tau is 0; it takes at least 1"),
    ],
)
def test_options_out_of_range_are_refused(wrong, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        wrong()
