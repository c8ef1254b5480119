import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tenfold.data import Tensors
from tenfold.training import LOSSES, METRICS, all_targets, evaluate, measure, predict
from tenfold.training.evaluation import BATCH


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def part(samples):
    generator = torch.Generator().manual_seed(samples)
    return Tensors(torch.randn(samples, 4, generator=generator), torch.randint(3, (samples,), generator=generator))


class WithoutTargets(Tensors):
    """Data whose targets are known only batch by batch."""

    targets = None


@settings(deadline=None, derandomize=True, max_examples=15)
@given(st.integers(1, 2 * BATCH + 1))
def test_an_evaluation_is_the_direct_computation(samples):
    made, data = network(), part(samples)
    found = evaluate(made, data, LOSSES["cross-entropy"], {"accuracy": METRICS["accuracy"]})
    with torch.no_grad():
        outputs = made.eval()(data.x)
    assert found["loss"] == pytest.approx(float(functional.cross_entropy(outputs, data.y)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((outputs.argmax(1) == data.y).float().mean()))
    assert list(found) == ["loss", "accuracy"]


def test_predictions_come_in_the_order_that_was_asked_for():
    made, data = network(), part(20)
    samples = torch.tensor([7, 3, 19, 3])
    everything = predict(made, data, torch.arange(20))
    torch.testing.assert_close(predict(made, data, samples), everything[samples])


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training):
    made = network().train(training)
    made[1].eval()
    modes = [layer.training for layer in made.modules()]
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    generator = torch.get_rng_state()
    outputs = predict(made, part(20), torch.arange(20))
    assert [layer.training for layer in made.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not outputs.requires_grad


def test_the_mode_is_restored_even_when_the_network_fails():
    made = network().train()
    wrong = Tensors(torch.randn(3, 5), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(RuntimeError):
        predict(made, wrong, torch.arange(3))
    assert made.training
    assert made[3].training


def test_bf16_predictions_come_back_as_fp32_and_near():
    made, data = network(), part(50)
    exact = predict(made, data, torch.arange(50))
    rounded = predict(made, data, torch.arange(50), precision="bf16")
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)


def test_no_samples_give_no_outputs():
    assert len(predict(network(), part(5), torch.arange(0))) == 0


def test_a_network_without_parameters_can_be_evaluated():
    data = part(6)
    assert torch.equal(predict(nn.Identity(), data, torch.arange(6)), data.x)


def test_targets_are_gathered_where_they_are_not_at_hand():
    data = part(BATCH + 3)
    assert torch.equal(all_targets(WithoutTargets(data.x, data.y)), data.y)
    assert torch.equal(all_targets(data), data.y)


def test_measures_are_numbers_by_name():
    outputs, targets = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])
    found = measure(outputs, targets, LOSSES["mse"], {"mae": METRICS["mae"], "three": lambda o, t: 3})
    assert found == {"loss": 2.0, "mae": 1.0, "three": 3.0}
    assert {type(value) for value in found.values()} == {float}
