import pytest
import torch
from looped import looped

from tenfold.errors import ExperimentError
from tenfold.mixing import OUTER
from tenfold.mixing.outer import BMUF, DiLoCo, PlainAverage, SlowMo

X0 = [1.0, -2.0]
FIRST, SECOND = [2.0, 0.0], [3.0, -1.0]


def restarts(outer, *means, n=2, lr=0.5):
    """Return where the replicas restart after each of the means."""
    state = outer.start(torch.tensor(X0))
    return [outer.update(state, torch.tensor(mean), n=n, lr=lr).tolist() for mean in means]


def test_plain_averaging_goes_on_from_the_mean():
    assert restarts(PlainAverage(), FIRST, SECOND) == [FIRST, SECOND]


def test_bmuf_by_hand():
    # mu = 1 - 1/2. D = (1, 2), X = (2, 0); then G = (1, -1), D = (0.5, 1) + G = (1.5, 0), X = (3.5, 0).
    assert restarts(BMUF(), FIRST, SECOND) == [[2, 0], [3.5, 0]]


def test_nesterov_bmuf_restarts_ahead_and_filters_from_the_reference():
    # The same X and D as above; restarts are X + D/2.
    assert restarts(BMUF(nesterov=True), FIRST, SECOND) == [[2.5, 1], [4.25, 0]]


def test_bmuf_takes_its_momentum_from_the_number_of_replicas():
    assert restarts(BMUF(), FIRST, SECOND, n=4) == restarts(BMUF(mu=0.75), FIRST, SECOND, n=2)


def test_slowmo_by_hand():
    # gamma = 0.5. u = (x0 - mean)/0.5 = (-2, -4), x0 = (1, -2) - 0.5 u = (2, 0);
    # then u = 0.5 (-2, -4) + (2 - 3, 0 + 1)/0.5 = (-3, 0), x0 = (2, 0) - 0.5 u = (3.5, 0).
    assert restarts(SlowMo(beta=0.5), FIRST, SECOND) == [[2, 0], [3.5, 0]]


def test_slowmo_stands_still_where_the_learning_rate_is_zero():
    outer, x = SlowMo(), torch.tensor(X0)
    state = outer.start(x)
    assert outer.update(state, x.clone(), n=2, lr=0.0).tolist() == X0
    assert state["momentum"].tolist() == [0, 0]


def test_diloco_by_hand():
    # eta = mu = 0.5. D = (-1, -2), b = D, x = (1, -2) - 0.5 (D + 0.5 b) = (1.75, -0.5);
    # then D = (-1.25, 0.5), b = 0.5 b + D = (-1.75, -0.5), x = (1.75, -0.5) - 0.5 (D + 0.5 b) = (2.8125, -0.625).
    assert restarts(DiLoCo(outer_lr=0.5, momentum=0.5), FIRST, SECOND) == [[1.75, -0.5], [2.8125, -0.625]]


def test_diloco_is_nesterov_sgd_on_the_way_to_the_mean():
    x = torch.nn.Parameter(torch.tensor(X0))
    sgd = torch.optim.SGD([x], lr=0.7, momentum=0.9, nesterov=True)
    expected = []
    for mean in (FIRST, SECOND, FIRST):
        x.grad = x.detach() - torch.tensor(mean)
        sgd.step()
        expected.append(x.detach().clone())
    torch.testing.assert_close(torch.tensor(restarts(DiLoCo(), FIRST, SECOND, FIRST)), torch.stack(expected))


@pytest.mark.parametrize("plain", [BMUF(mu=0.0), SlowMo(beta=0.0), DiLoCo(outer_lr=1.0, momentum=0.0)])
def test_without_momentum_all_are_plain_averaging(plain):
    assert restarts(plain, FIRST, SECOND) == [FIRST, SECOND]


def test_one_replica_makes_bmuf_plain():
    assert restarts(BMUF(), FIRST, SECOND, n=1) == [FIRST, SECOND]


@pytest.mark.parametrize("name", list(OUTER))
class TestEveryOuterOptimizer:
    def test_it_works_in_place_and_leaves_the_start_alone(self, name):
        outer, x0, mean = OUTER[name](), torch.tensor(X0), torch.tensor(FIRST)
        state = outer.start(x0)
        assert outer.update(state, mean, n=2, lr=0.1) is mean
        assert x0.tolist() == X0
        assert all(remembered.data_ptr() != mean.data_ptr() for remembered in state.values())

    def test_the_parts_of_a_vector_can_be_updated_apart(self, name):
        generator = torch.Generator().manual_seed(1)
        x0, mean = torch.randn(2, 1000, generator=generator)
        outer = OUTER[name]()
        whole = outer.update(outer.start(x0), mean.clone(), n=3, lr=0.1)
        parts = [
            outer.update(outer.start(x0[part]), mean[part].clone(), n=3, lr=0.1)
            for part in (slice(0, 333), slice(333, 1000))
        ]
        assert torch.equal(whole, torch.cat(parts))

    def test_a_fixed_point_stays(self, name):
        outer, x = OUTER[name](), torch.tensor(X0)
        state = outer.start(x)
        assert outer.update(state, x.clone(), n=4, lr=0.1).tolist() == X0

    def test_the_registry_knows_it_by_its_own_name(self, name):
        assert OUTER[name].name == name


@looped(
    ("wrong", "sentence"),
    [
        (lambda: BMUF(mu=1.0), "mu is 1.0"),
        (lambda: BMUF(zeta=0), "zeta is 0"),
        (lambda: SlowMo(alpha=0), "alpha is 0"),
        (lambda: SlowMo(beta=1), "beta is 1"),
        (lambda: DiLoCo(outer_lr=0), "outer_lr is 0"),
        (lambda: DiLoCo(momentum=-0.1), "momentum is -0.1"),
    ],
)
def test_options_out_of_range_are_refused(wrong, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        wrong()
