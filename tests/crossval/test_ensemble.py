"""The models of all folds: averaged as a round averages, or voting."""

import pytest
import torch
from torch import nn

from tenfold.crossval.crossval_result import Vote, average_weights, combine_outputs, output_kind
from tenfold.experiment import Training


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def trained(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    made = network()
    for _ in range(3):
        made(torch.randn(16, 3) * (seed + 1) + seed)
    return made


def test_weights_are_averaged_by_samples() -> None:
    one, two = trained(1).state_dict(), trained(2).state_dict()
    mean = average_weights(network(), [one, two], [30, 10])
    for name in ("0.weight", "3.bias", "1.weight", "1.running_mean"):
        assert torch.allclose(mean[name], 0.75 * one[name] + 0.25 * two[name], atol=1e-6)


def test_batch_normalization_is_that_of_all_samples() -> None:
    states = [trained(seed).state_dict() for seed in range(3)]
    mean = average_weights(network(), states, [10, 10, 10])
    means = torch.stack([state["1.running_mean"] for state in states])
    variances = torch.stack([state["1.running_var"] for state in states])
    assert torch.allclose(mean["1.running_var"], variances.mean(0) + means.var(0, unbiased=False), rtol=1e-5)


def test_the_average_of_one_is_itself() -> None:
    state = trained(4).state_dict()
    mean = average_weights(network(), [state], [7])
    assert all(torch.allclose(mean[name].float(), state[name].float(), atol=1e-6) for name in state)


def test_classes_vote_with_their_probabilities() -> None:
    outputs = [torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]])]
    together = combine_outputs(outputs, "classes")
    expected = torch.stack([output.softmax(1) for output in outputs]).mean(0)
    assert torch.allclose(together.exp(), expected)
    assert together.argmax(1).item() == 0  # one that is sure outweighs two that are not


def test_single_logits_and_numbers() -> None:
    outputs = [torch.tensor([[2.0]]), torch.tensor([[-1.0]])]
    assert torch.allclose(combine_outputs(outputs, "logit").sigmoid(), torch.stack(outputs).sigmoid().mean(0))
    assert combine_outputs(outputs, "numbers").item() == 0.5


@pytest.mark.parametrize(
    ("loss", "classes", "expected"),
    [(None, 10, "classes"), (None, None, "numbers"), ("bce", None, "logit"), ("mse", 10, "numbers")],
)
def test_what_outputs_are(loss: str | None, classes: int | None, expected: str) -> None:
    assert output_kind(Training(loss=loss), classes) == expected


def test_a_vote_is_a_network() -> None:
    members = [trained(seed).eval() for seed in range(3)]
    x = torch.randn(5, 3)
    found = Vote(members, Training(), 2)(x)
    assert torch.equal(found, combine_outputs([member(x) for member in members], "classes"))


def test_a_vote_of_probabilities_is_their_mean() -> None:
    members = [nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()) for _ in range(3)]
    x = torch.randn(5, 3)
    found = Vote(members, Training(loss=nn.BCELoss()), None)(x)
    assert torch.allclose(found, torch.stack([member(x) for member in members]).mean(0))
