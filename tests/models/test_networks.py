import functools
import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from torch import nn

from tenfold.errors import ModelError
from tenfold.experiment import Model
from tenfold.models.networks import ACTIVATIONS, build, parameter_count
from tenfold.registry import MODELS

FOR_ANY_IMAGE = [name for name in MODELS if name != "recommender"]


SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "color": (3, 32, 32)}


def make(shape=(1, 28, 28), outputs=10, seed=0, **fields):
    return build(Model(**fields), shape, outputs, seed=seed)


def refused(**arguments):
    with pytest.raises(ModelError) as caught:
        make(**arguments)
    return str(caught.value)


def kinds(network, kind):
    return [layer for layer in network.modules() if isinstance(layer, kind)]


@looped(
    ("fields", "shape", "count"),
    [
        ({"name": "lenet5"}, (1, 28, 28), 61_706),
        ({"name": "cnn"}, (1, 28, 28), 1_199_882),
        ({"name": "mlp"}, (1, 28, 28), 784 * 128 + 128 + 128 * 10 + 10),
        ({"name": "mlp", "hidden": (30, 20)}, (64,), 64 * 30 + 30 + 30 * 20 + 20 + 20 * 10 + 10),
        ({"name": "mlp", "hidden": ()}, (64,), 64 * 10 + 10),
        ({"name": "mlp", "hidden": (30,), "batchnorm": True}, (64,), 64 * 30 + 30 + 2 * 30 + 30 * 10 + 10),
    ],
)
def test_the_networks_have_as_many_parameters_as_is_said(fields, shape, count):
    assert parameter_count(make(shape, **fields)) == count


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize("name", FOR_ANY_IMAGE)
def test_every_network_learns_from_every_shape(name, batchnorm, shape):
    network = make(shape, outputs=7, name=name, batchnorm=batchnorm, dropout=0.2)
    outputs = network(torch.rand(3, *shape))
    assert outputs.shape == (3, 7)
    outputs.square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from(FOR_ANY_IMAGE), st.tuples(st.integers(1, 3), st.integers(1, 34), st.integers(1, 34)))
def test_a_network_takes_images_of_a_size_or_says_which_it_takes(name, shape):
    smallest = {"lenet5": 4, "cnn": 6, "mlp": 1}[name]
    if min(shape[1:]) < smallest:
        assert f"{name} needs images of at least {smallest}x{smallest} pixels" in refused(shape=shape, name=name)
    else:
        assert make(shape, name=name).eval()(torch.rand(2, *shape)).shape == (2, 10)


@looped("name", ["lenet5", "cnn"])
@looped("shape", [(64,), (28, 28), (1, 2, 28, 28), ()])
def test_what_is_no_image_is_refused_with_a_way_out(name, shape):
    message = refused(shape=shape, name=name)
    assert f"{name} takes images, (channels, height, width), but a sample here has shape {shape}" in message
    assert "mlp" in message


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), st.integers(1, 4))
def test_an_mlp_takes_any_shape(shape, outputs):
    network = make(shape, outputs, name="mlp", hidden=(3,))
    assert network(torch.rand(2, *shape)).shape == (2, outputs)
    assert parameter_count(network) == math.prod(shape) * 3 + 3 + 3 * outputs + outputs


@looped("name", FOR_ANY_IMAGE)
@looped("activation", ACTIVATIONS)
def test_activations_are_what_they_are_called(name, activation):
    layers = kinds(make(name=name, activation=activation), type(ACTIVATIONS[activation]()))
    assert layers
    assert not kinds(make(name=name, activation="tanh"), nn.ReLU)


@looped("name", FOR_ANY_IMAGE)
def test_dropout_and_normalization_come_only_when_asked_for(name):
    plain, full = make(name=name), make(name=name, dropout=0.25, batchnorm=True)
    normalizing = (nn.BatchNorm1d, nn.BatchNorm2d)
    assert not kinds(plain, (nn.Dropout, *normalizing))
    assert {layer.p for layer in kinds(full, nn.Dropout)} == {0.25}
    assert kinds(full, normalizing)


def test_a_field_that_a_network_lacks_is_refused():
    assert refused(name="lenet5", hidden=(3,)) == (
        "model lenet5 has no option 'hidden'; its options: activation, dropout, batchnorm"
    )


@pytest.mark.parametrize("options", [{"activation": ["relu"]}, {"shape": [1]}, {"wings": 2}])
def test_a_built_in_network_takes_no_further_options(options):
    assert "model.options are only for a callable of your own, but model mlp got" in refused(
        name="mlp", options=options
    )


@settings(deadline=None, derandomize=True, max_examples=10)
@given(st.integers(0, 2**63 - 1), st.sampled_from(FOR_ANY_IMAGE))
def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_generator_alone(seed, name):
    before = torch.get_rng_state()
    one, other = make((1, 8, 8), name=name, seed=seed), make((1, 8, 8), name=name, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_another_seed_gives_other_weights():
    one, other = make(name="mlp", seed=1), make(name="mlp", seed=2)
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_parameters_that_do_not_learn_are_not_counted():
    network = make(name="mlp", hidden=(3,))
    next(network.parameters()).requires_grad_(False)
    assert parameter_count(network) == 3 + 3 * 10 + 10


class TestRecommender:
    def test_candidates_share_what_is_learned_of_pairs(self):
        network = make((3 + 4 * 5,), 5, name="recommender", hidden=(2,))
        assert parameter_count(network) == 3 * 5 + 5 + 4 + (5 * 2 + 2) + (2 + 1)
        with torch.no_grad():
            network.pair.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
        x = torch.zeros(1, 23)
        x[0, 3 + 2] = 7.0  # the first of the four inputs of candidate 2
        network.eval()
        scores = network(x)[0] - network(torch.zeros(1, 23))[0]
        assert scores.tolist() == [0, 0, 7, 0, 0]

    def test_samples_without_pairs_are_refused(self):
        assert "4 inputs for each of the 10 candidates" in refused(name="recommender", shape=(40,))


class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)


class Sized(nn.Linear):
    def __init__(self, shape, outputs, bias=True):
        super().__init__(shape[0], outputs, bias=bias)


def made(name, *, seed=0, **fields):
    return build(Model(name=name, **fields), (4,), 2, seed=seed)


def refused_own(*args, **kwargs):
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
        (Net(), {"options": {"width": 3}}, "takes no options"),
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
    assert message in refused_own(name, **fields)


def test_a_network_that_exists_is_copied_with_its_weights():
    network = Net()
    copies = [made(network), made(network)]
    assert all(copied is not network for copied in copies)
    for copied in copies:
        assert all(map(torch.equal, copied.parameters(), network.parameters()))
        assert not {id(parameter) for parameter in copied.parameters()} & set(map(id, network.parameters()))
    network.held = torch.ones(1, requires_grad=True) * 2
    assert "cannot be copied for each replica (RuntimeError" in refused_own(network)


def test_a_callable_must_not_return_one_network_twice():
    network = Net()
    assert made(lambda: network) is network
    assert "returned the same network twice" in refused_own(lambda: network)


def test_tensors_that_share_memory_are_refused_and_shared_parameters_are_not():
    def tied():
        network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        network[1].weight = network[0].weight
        return network

    def apart():
        network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        network[1].weight.data = network[0].weight.data
        return network

    def overlapping():
        network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        network[1].weight.data = network[0].weight.data[1:]
        return network

    def between():
        network, columns = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3)), torch.zeros(3, 4)
        network[0].weight.data, network[1].bias.data = columns[:, :2], columns[:, 2]
        network.register_buffer("neighbors", torch.eye(3).to_sparse())
        return network

    for name in (tied, tied(), between):
        assert make(shape=(3,), name=name)[1].weight is not None
    for name in (apart, apart(), overlapping):
        assert "0.weight and 1.weight" in refused(shape=(3,), name=name)
