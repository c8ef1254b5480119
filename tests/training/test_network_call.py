import copy
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from looped import looped
from torch import Tensor, nn

from tenfold.data import Tensors
from tenfold.errors import ModelError
from tenfold.experiment import Training
from tenfold.training import Replica, choose_loss, choose_metrics, evaluate, measure, predict
from tenfold.training.network_call import call_network, plain_outputs

A, B, Y = torch.randn(6, 3), torch.randn(6, 3), torch.arange(6) % 2


class Calls(nn.Module):
    """Records how it is called, and returns what a function makes of the result of its layer."""

    def __init__(self, returns=lambda outputs: outputs):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.returns = returns


class Named(Calls):
    def forward(self, a, b=None):
        return self.returns(self.layer(a if b is None else a + b))


class Whole(Calls):
    def forward(self, batch):
        a, b = batch.values() if isinstance(batch, dict) else batch
        return self.returns(self.layer(a + b))


class Labeled(Calls):
    def forward(self, a, labels):
        logits = self.layer(a)
        return self.returns({"loss": nn.functional.cross_entropy(logits, labels), "logits": logits})


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor
    cache: object = None


@looped("kind", [Named, Whole])
@looped("inputs", [(A, B), {"a": A, "b": B}, {"b": B, "a": A}])
def test_inputs_are_arguments_or_one_argument(kind, inputs):
    network = kind()
    assert torch.equal(call_network(network, inputs), network.layer(A + B))


def test_inputs_that_forward_does_not_take_are_named():
    with pytest.raises(ModelError, match="input_columns"):
        call_network(Named(), {"a": A, "c": B})
    with pytest.raises(ModelError, match="positional"):
        call_network(Named(), (A, B, B))


@looped(
    ("outputs", "plain"),
    [
        (OrderedDict(logits=A, cache=None), {"logits": A}),
        (Output(A, B), {"logits": A, "hidden": B}),
        (namedtuple("Pair", "x y")(A, B), (A, B)),
        ([A, {"b": B}], (A, {"b": B})),
        (A.sum(), {"loss": A.sum()}),
    ],
)
def test_outputs_are_plain_tuples_and_dicts(outputs, plain):
    def same(one, other):
        if isinstance(one, Tensor):
            return torch.equal(one, other)
        pairs = [(one[key], other[key]) for key in (one if isinstance(one, dict) else range(len(one)))]
        return type(one) is type(other) and len(one) == len(other) and all(same(*pair) for pair in pairs)

    assert same(plain_outputs(outputs), plain)


def test_outputs_without_tensors_are_refused():
    with pytest.raises(ModelError, match="tensors"):
        plain_outputs(["text"])


def step(network, inputs, **training):
    """Take one step, and return the loss of the step and the metrics after it."""
    training = Training(optimizer="sgd", **training)
    loss, metrics = choose_loss(training, 2), choose_metrics(training, 2)
    replica = Replica(network, training, loss, steps_per_epoch=1)
    return float(replica.step(inputs, Y)), evaluate(network, Tensors(inputs, Y), loss, metrics)


@pytest.mark.parametrize(
    "returns",
    [
        lambda logits: {"logits": logits, "hidden": logits * 2},
        lambda logits: {"scores": logits},
        lambda logits: (logits,),
        lambda logits: Output(logits, logits),
    ],
)
def test_built_in_measures_take_the_main_output(returns):
    torch.manual_seed(0)
    plain, several = Named(), Named(returns)
    several.load_state_dict(plain.state_dict())
    assert step(several, A) == step(plain, A)


def test_built_in_measures_refuse_outputs_without_a_main_one():
    with pytest.raises(ModelError, match="cross-entropy"):
        step(Named(lambda logits: (logits, logits)), A)
    with pytest.raises(ModelError, match="logits"):
        step(Named(lambda logits: {"a": logits, "b": logits}), A, loss=nn.CrossEntropyLoss())


def test_own_measures_get_all_outputs_in_training_and_evaluation():
    def loss(outputs, targets):
        assert torch.equal(outputs.a, outputs["a"])
        return nn.functional.cross_entropy(outputs["a"], targets) + 0.1 * outputs.size

    def spread(outputs, targets):
        return outputs["b"].std()

    network = Named(lambda logits: {"a": logits, "b": logits * 2, "size": logits.square().mean()})
    _, measured = step(network, A, loss=loss, metrics=[spread])
    outputs = predict(network, Tensors(A, Y), torch.arange(6))
    assert outputs["size"].shape == (6,)
    expected = nn.functional.cross_entropy(outputs["a"], Y) + 0.1 * outputs["size"][0]
    assert measured["loss"] == pytest.approx(float(expected))
    assert measured["spread"] == pytest.approx(float(outputs["b"].std()))


def test_a_network_may_compute_its_loss_itself():
    inputs = {"a": A, "labels": Y}
    torch.manual_seed(0)
    plain, own = Named(), Labeled()
    own.load_state_dict(plain.state_dict())
    before = copy.deepcopy(plain)
    (first, measured), (expected, of_plain) = step(own, inputs, loss="network", metrics="accuracy"), step(plain, A)
    assert (first, measured) == (pytest.approx(expected), pytest.approx(of_plain))
    plain = before
    for returns in (lambda outputs: outputs["loss"], lambda outputs: tuple(outputs.values())):
        other = Labeled(returns)
        other.load_state_dict(plain.state_dict())
        first, measured = step(other, inputs, loss="network")
        assert first == pytest.approx(float(nn.functional.cross_entropy(plain.layer(A), Y).detach()))
        assert measured.keys() == {"loss"}


class LossLast(Named):
    """Returns (logits, loss), and (logits, None) without labels."""

    def forward(self, a, labels=None):
        logits = self.layer(a)
        return logits, None if labels is None else nn.functional.cross_entropy(logits, labels)


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc"])
def test_the_only_number_of_a_tuple_is_its_loss(metric):
    torch.manual_seed(0)
    plain, own = Named(), LossLast()
    own.load_state_dict(plain.state_dict())
    first, measured = step(own, {"a": A, "labels": Y}, loss="network", metrics=metric)
    expected, of_plain = step(plain, A, metrics=metric)
    assert (first, measured) == (pytest.approx(expected), pytest.approx(of_plain))


def test_the_loss_of_a_network_is_found_beside_one_number_for_each_sample():
    class Regression(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(A.shape[1], 1)

        def forward(self, a, y):
            predicted = self.layer(a)[:, 0]
            return predicted, (predicted - y).square().mean()

    _, measured = step(network := Regression(), (A, Y), loss="network")
    with torch.no_grad():
        assert measured["loss"] == pytest.approx(float(network(A, Y)[1]))


def test_several_numbers_in_a_tuple_are_ambiguous():
    with pytest.raises(ModelError, match="there are 2"):
        step(Named(lambda logits: (logits, logits.mean(), logits.std())), A, loss="network")


def test_a_network_without_a_loss_of_its_own_is_told_so():
    with pytest.raises(ModelError, match="network"):
        step(Named(lambda logits: {"logits": logits}), A, loss="network")
    with pytest.raises(ModelError, match=r"needs a single number from the network.*input_columns"):
        step(Named(), A, loss="network")
    with pytest.raises(ModelError, match="accuracy"):
        step(Labeled(lambda outputs: outputs["loss"]), {"a": A, "labels": Y}, loss="network", metrics="accuracy")


def test_outputs_of_different_shape_cannot_be_joined():
    class Uneven(nn.Module):
        def forward(self, x):
            return torch.zeros(len(x), len(x))

    with pytest.raises(ModelError, match="batches"):
        predict(Uneven(), Tensors(torch.zeros(130, 2), torch.zeros(130)), torch.arange(130))


def test_losses_of_samples_are_averaged_in_evaluation():
    assert measure(A, A, lambda outputs, targets: torch.tensor([1.0, 3.0]), {}) == {"loss": 2.0}


def test_a_metric_that_cannot_take_the_outputs_is_refused_with_the_first_loss():
    outputs = {"start": torch.randn(4, 2), "end": torch.randn(4, 2)}
    own = lambda outputs, targets: outputs["start"].mean()  # noqa: E731
    assert torch.isfinite(choose_loss(Training(loss=own), 2)(outputs, torch.zeros(4)))
    assert torch.isfinite(choose_loss(Training(loss=own, metrics=[lambda outputs, targets: 1.0]), 2)(outputs, None))
    with pytest.raises(ModelError, match="accuracy"):
        choose_loss(Training(loss=own, metrics=["accuracy"]), 2)(outputs, torch.zeros(4))


def test_an_object_with_tensors_is_taken_apart():
    found = plain_outputs(SimpleNamespace(loss=torch.tensor(1.0), logits=torch.zeros(2, 3), cache=None))
    assert set(found) == {"loss", "logits"}
