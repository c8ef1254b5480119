import numpy as np
import pytest
from looped import looped
from wave_messages import Message, messages

from tenfold.errors import ExperimentError
from tenfold.mixing import Round
from tenfold.mixing.round import COLLECTIVES, exact_round, group_round, idle_round, shifted_round

RING_OF_FOUR = shifted_round(4, (-1, 1))


@looped(
    ("sources", "sentence"),
    [
        ((), "needs at least 1 replica"),
        (((1,), (0, 1)), "replica 0 of a round reads"),
        (((0, 1), (1, 0)), "replica 1 of a round reads"),
        (((0, 2), (1,)), "replica 0 of a round reads"),
        (((-1, 0), (1,)), "replica 0 of a round reads"),
        (((0, 0), (1,)), "replica 0 of a round reads"),
        (((0,), (0, 1)), "changes the mean"),
        (((0, 1), (0, 1), (1, 2)), "changes the mean"),
    ],
)
def test_rounds_that_make_no_sense_are_refused(sources, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        Round(sources)


def test_groups_list_singles_too_and_rings_have_none():
    assert group_round(((0, 2), (1,))).groups == ((0, 2), (1,))
    assert idle_round(2).groups == ((0,), (1,))
    assert RING_OF_FOUR.groups is None


def test_partners_are_those_read_and_those_reading():
    one_sided = shifted_round(5, (-1,))
    assert one_sided.partners(0) == (1, 4)
    assert group_round(((0, 2), (1,))).partners(1) == ()


def test_a_group_weighs_its_members_by_samples():
    matrix = group_round(((0, 2), (1,))).matrix([30, 5, 10])
    assert matrix.tolist() == [[0.75, 0, 0.25], [0, 1, 0], [0.75, 0, 0.25]]


def test_a_ring_lets_weighted_replicas_flow_at_the_pace_of_the_lightest():
    matrix = shifted_round(4, (-1,)).matrix([1, 2, 4, 1])
    assert matrix.tolist() == [[0.5, 0, 0, 0.5], [0.25, 0.75, 0, 0], [0, 0.125, 0.875, 0], [0, 0, 0.5, 0.5]]


@pytest.mark.parametrize("round_", [exact_round(4), RING_OF_FOUR])
def test_replicas_that_saw_nothing_count_for_nothing(round_):
    weights = np.array([0, 3, 4, 5])
    matrix = round_.matrix(weights)
    np.testing.assert_allclose(weights @ matrix, weights)
    assert (matrix[1:, 0] == 0).all()
    assert np.array_equal(round_.matrix([0, 0, 0, 0]), round_.matrix())


@pytest.mark.parametrize("weights", [[1, 2], [1, 2, -1, 1], [1, 2, float("nan"), 1]])
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(ExperimentError, match="replicas"):
        RING_OF_FOUR.matrix(weights)


def test_pairs_swap_in_one_phase():
    assert messages(group_round(((0, 1), (2,))), 8) == ((Message(1, 0, 8, True), Message(0, 1, 8, True)),)


def test_ring_neighbors_send_both_ways_in_one_phase():
    (phase,) = messages(RING_OF_FOUR, 8)
    assert len(phase) == 8
    assert RING_OF_FOUR.bytes_per_worker(8) == (16, 16, 16, 16)


def test_groups_go_through_their_phases_side_by_side():
    round_ = group_round(((0, 1, 2), (3, 4)))
    phases = messages(round_, 12)
    assert [len(phase) for phase in phases] == [3 + 2, 3, 3, 3]
    assert round_.bytes_per_worker(12) == (16, 16, 16, 12, 12)


@looped(
    ("algorithm", "sent"),
    [("ring", 2 * 750), ("halving-doubling", 2 * 750), ("recursive-doubling", 2 * 1000), ("server", 1000)],
)
def test_what_each_of_four_workers_sends(algorithm, sent):
    assert exact_round(4, COLLECTIVES[algorithm]).bytes_per_worker(1000) == (sent,) * 4


def test_rounds_are_values():
    assert exact_round(3) == Round(((0, 1, 2),) * 3)
    assert len({exact_round(3), Round(((0, 1, 2),) * 3), idle_round(3)}) == 2
