import functools
import sys

import pytest
import torch
from torch import nn

from tenfold.errors import ModelError
from tenfold.experiment import Model
from tenfold.models import build


class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)


class Sized(nn.Linear):
    def __init__(self, shape, outputs, bias=True):
        super().__init__(shape[0], outputs, bias=bias)


def made(name, *, seed=0, **fields):
    return build(Model(name=name, **fields), (4,), 2, seed=seed)


def refused(*args, **kwargs):
    with pytest.raises(ModelError) as caught:
        made(*args, **kwargs)
    return str(caught.value)


def only_outputs(outputs):
    return nn.Linear(4, outputs)


def anything(**arguments):
    network = nn.Linear(4, 2)
    network.arguments = arguments
    return network


@pytest.mark.parametrize(
    "name",
    [Net, Sized, only_outputs, lambda: nn.Linear(4, 2), lambda shape: nn.Linear(*shape, 2), functools.partial(Net)],
)
def test_a_callable_is_given_what_its_signature_names(name):
    assert made(name)(torch.rand(3, 4)).shape == (3, 2)


def test_a_callable_that_takes_anything_is_given_its_options_only():
    assert made(anything, options={"width": 3}).arguments == {"width": 3}


def test_options_reach_the_callable_and_win():
    assert made(Sized, options={"bias": False}).bias is None
    assert made(only_outputs, options={"outputs": 5}).out_features == 5
    assert made(functools.partial(Sized, bias=False)).bias is None


def test_fields_of_the_built_in_networks_reach_a_callable_that_has_them():
    def network(dropout=0.0):
        return nn.Dropout(dropout)

    assert made(network, dropout=0.5).p == 0.5


def test_a_callable_is_found_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "my_own_networks.py").write_text(
        "from torch import nn\ndef net(outputs): return nn.Linear(4, outputs)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert made("my_own_networks:net").out_features == 2
    monkeypatch.delitem(sys.modules, "my_own_networks")


def test_own_networks_start_from_the_seed_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    one, same, other = made(Net, seed=3), made(Net, seed=3), made(Net, seed=4)
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)
    assert torch.equal(torch.get_rng_state(), before)


def failing():
    torch.rand(3)
    raise RuntimeError("my own fault")


def test_what_the_callable_raises_keeps_its_traceback_and_the_generator_its_state():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="my own fault"):
        made(failing)
    assert torch.equal(torch.get_rng_state(), before)


def needs_width(width):
    return nn.Linear(4, width)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (Net(), {"options": {"width": 3}}, "exists"),
        (lambda: 3, {}, "lambda"),
        (lambda: Net, {}, "returned a type; it must return an nn.Module"),
        (Sized, {"options": {"wings": 2}}, "wings"),
        (Net, {"options": {"wings": 2}}, "wings"),
        (Net, {"hidden": (3,)}, "hidden"),
        (needs_width, {}, "model.options"),
        (lambda: nn.LazyLinear(2), {}, "lambda"),
        ("<lambda>", {}, "lambda"),
        ("math:pi", {}, "callable"),
    ],
)
def test_what_is_no_model_is_explained(name, fields, message):
    assert message in refused(name, **fields)


def test_a_network_that_exists_is_copied_with_its_weights():
    network = Net()
    copies = [made(network), made(network)]
    assert all(copied is not network for copied in copies)
    for copied in copies:
        assert all(map(torch.equal, copied.parameters(), network.parameters()))
        assert not {id(parameter) for parameter in copied.parameters()} & set(map(id, network.parameters()))
    network.held = torch.ones(1, requires_grad=True) * 2
    assert "cannot be copied for each replica (RuntimeError" in refused(network)


def test_a_callable_must_not_return_one_network_twice():
    network = Net()
    assert made(lambda: network) is network
    assert "has returned the same network twice" in refused(lambda: network)
