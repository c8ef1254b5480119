import pytest
import torch
from torch import nn

from tenfold.catalog import OPTIMIZERS
from tenfold.common.optimizer_traits import OPTIMIZER_TRAITS, OptimizerTraits, traits_of
from tenfold.experiment import Training
from tenfold.training.optimizers import ASSUMED, count_state_vectors


@pytest.mark.parametrize("name", sorted(set(OPTIMIZER_TRAITS) - {"lbfgs", "sandblaster-lbfgs"}))
def test_no_more_are_found_after_a_step_than_the_traits_say(name):
    assert count_state_vectors(Training(optimizer=name), nn.Linear(8, 8)) <= OPTIMIZER_TRAITS[name].state_vectors


def test_those_of_a_users_own_are_counted_or_assumed():
    assert count_state_vectors(Training(optimizer=torch.optim.Adamax), nn.Linear(8, 8)) == 2
    assert count_state_vectors(Training(optimizer=torch.optim.SparseAdam), nn.Linear(8, 8)) == ASSUMED


def test_a_network_without_anything_to_train_needs_none():
    assert count_state_vectors(Training(optimizer=torch.optim.Adamax), nn.Linear(8, 8).requires_grad_(False)) == 0


def test_an_optimizer_that_the_table_lacks_has_the_defaults(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS.built_in, "new", "torch.optim:NAdam")
    assert traits_of("new") == OptimizerTraits()
    assert not traits_of("new").takes_sparse
    assert traits_of(Training(optimizer=torch.optim.NAdam).optimizer).takes_sparse


def test_lbfgs_is_known_however_it_is_given():
    assert all(Training(optimizer=item).needs_closure for item in ("lbfgs", "torch.optim:LBFGS", torch.optim.LBFGS))
