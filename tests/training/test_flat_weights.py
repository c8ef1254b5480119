import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from tenfold.errors import ModelError
from tenfold.training import FlatState, flat_size
from tenfold.training.flat_weights import ALIGNMENT


def network(features=5):
    return nn.Sequential(nn.Linear(3, features), nn.BatchNorm1d(features), nn.Linear(features, 2, bias=False))


def state(made):
    return {name: tensor.clone() for name, tensor in made.state_dict().items()}


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(1, 40))
def test_laying_out_changes_no_number(features):
    made = network(features)
    before = state(made)
    flat = FlatState(made)
    assert flat.vector.numel() == flat_size(network(features))
    assert flat.vector.numel() % ALIGNMENT == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items())


def test_parameters_and_statistics_are_views_of_the_vector():
    made = network()
    flat = FlatState(made)
    beginning, end = flat.vector.data_ptr(), flat.vector.data_ptr() + 4 * flat.vector.numel()
    for tensor in [*made.parameters(), made[1].running_mean, made[1].running_var]:
        assert beginning <= tensor.data_ptr() < end
        assert (tensor.data_ptr() - beginning) % (4 * ALIGNMENT) == 0
    flat.vector.fill_(7.0)
    assert all((tensor == 7).all() for name, tensor in made.state_dict().items() if "num_batches" not in name)
    made[0].weight.data.fill_(3.0)
    assert int((flat.vector == 3).sum()) == 15


def test_training_steps_and_loading_write_into_the_vector():
    made = network()
    flat = FlatState(made)
    before = flat.vector.clone()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    made(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(flat.vector, before)
    made.load_state_dict(network().state_dict())
    flat.vector.zero_()
    assert not made[2].weight.any()


def test_a_vector_from_elsewhere_is_filled_and_used():
    vector = torch.full((flat_size(network()),), 9.0)
    made = network()
    weight = made[0].weight.clone()
    flat = FlatState(made, vector)
    assert flat.vector is vector
    assert torch.equal(vector[:15], weight.flatten())


def test_parameters_come_first():
    made = network()
    flat = FlatState(made)
    flat.vector[: flat.parameters] = 0
    assert not any(parameter.any() for parameter in made.parameters())
    assert torch.equal(made[1].running_var, torch.ones(5))


def test_shared_weights_are_laid_out_once_and_stay_shared():
    made = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    made[1].weight = made[0].weight
    flat = FlatState(made)
    assert flat.vector.numel() == 16
    flat.vector.fill_(2.0)
    assert made[1].weight is made[0].weight
    assert (made[1].weight == 2).all()


def test_a_network_without_weights_has_an_empty_vector():
    assert FlatState(nn.ReLU()).vector.numel() == flat_size(nn.ReLU()) == 0


@pytest.mark.parametrize("dtypes", [[torch.bfloat16], [torch.complex64], [torch.float32, torch.float64]])
def test_other_number_formats_are_refused(dtypes):
    with pytest.raises(ModelError, match="float32"):
        FlatState(nn.Sequential(*(nn.Linear(2, 2, dtype=dtype) for dtype in dtypes)))


def test_gradients_are_added_in_the_places_of_their_parameters():
    made = network()
    flat = FlatState(made)
    total = torch.zeros_like(flat.vector)
    flat.add_gradients(total)
    assert not total.any()
    made(torch.randn(4, 3)).square().sum().backward()
    made[2].weight.grad = None
    flat.add_gradients(total)
    flat.add_gradients(total)
    flat.vector.copy_(total)
    for parameter in [*made[0].parameters(), *made[1].parameters()]:
        assert torch.equal(parameter, 2 * parameter.grad)
    assert not made[2].weight.any()


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(1, 8), st.integers(0, 10_000))
def test_the_whole_state_is_mixed(replicas, seed):
    """Law 6: mean = avg(mean_i), var = avg(var_i) + var(mean_i)."""
    generator = torch.Generator().manual_seed(seed)
    made = [network() for _ in range(replicas)]
    flats = [FlatState(item) for item in made]
    means, variances = torch.randn(replicas, 5, generator=generator), torch.rand(replicas, 5, generator=generator)
    for one, mean, variance in zip(made, means, variances, strict=True):
        one[1].running_mean.copy_(mean)
        one[1].running_var.copy_(variance)
    for flat in flats:
        flat.batch_norm.variances_to_moments()
    average = torch.stack([flat.vector for flat in flats]).mean(0)
    for flat in flats:
        flat.vector.copy_(average)
        flat.batch_norm.moments_to_variances(replicas_are_equal=False)
    for one in made:
        torch.testing.assert_close(one[1].running_mean, means.mean(0))
        expected = variances.mean(0) + means.var(0, unbiased=False)
        torch.testing.assert_close(one[1].running_var, expected, atol=1e-5, rtol=1e-4)


def test_the_moments_are_those_of_all_samples_together():
    """The mixed statistics of equal parts are the statistics of the whole."""
    x = torch.randn(4, 100, 5, dtype=torch.float64) * 2 + torch.arange(4.0).reshape(4, 1, 1)
    made = [network() for _ in range(4)]
    flats = [FlatState(item) for item in made]
    for item, flat, part in zip(made, flats, x, strict=True):
        item[1].running_mean.copy_(part.mean(0))
        item[1].running_var.copy_(part.var(0, unbiased=False))
        flat.batch_norm.variances_to_moments()
    flats[0].vector.copy_(torch.stack([flat.vector for flat in flats]).mean(0))
    flats[0].batch_norm.moments_to_variances(replicas_are_equal=False)
    torch.testing.assert_close(
        made[0][1].running_var.double(), x.flatten(0, 1).var(0, unbiased=False), rtol=1e-4, atol=0
    )


def test_moments_touch_nothing_but_variances_and_variances_never_go_below_zero():
    made = network()
    flat = FlatState(made)
    before = state(made)
    made[1].running_mean.fill_(3.0)
    flat.batch_norm.variances_to_moments()
    assert torch.equal(made[1].running_var, before["1.running_var"] + 9)
    made[1].running_var.fill_(8.999)
    flat.batch_norm.moments_to_variances(replicas_are_equal=False)
    assert torch.equal(made[1].running_var, torch.zeros(5))
    assert torch.equal(made[0].weight, before["0.weight"])


def test_released_tensors_have_memory_of_their_own_and_the_same_numbers():
    made = nn.Sequential(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), network())
    flat = FlatState(made)
    before = state(made)
    flat.release()
    flat.vector.fill_(7.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items())
    tensors = [tensor for tensor in made.state_dict().values() if tensor.is_floating_point()]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)
    assert made[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_the_points_move_to_the_means():
    made = network()
    flat = FlatState(made)
    made[1].running_mean.fill_(3.0)
    assert not flat.batch_norm.reference_means[0].any()
    flat.batch_norm.update_reference_means()
    assert (flat.batch_norm.reference_means[0] == 3).all()


def test_a_vector_of_another_size_is_refused():
    with pytest.raises(ModelError, match="80"):
        FlatState(nn.Linear(64, 1), torch.zeros(96))


@pytest.mark.parametrize("memory", [True, False])
def test_a_replaced_parameter_is_found(memory):
    made = network()
    flat = FlatState(made)
    assert flat.find_replaced(made, memory=memory) == ""
    made[0].bias.data = made[0].bias.data.clone()
    assert flat.find_replaced(made, memory=memory) == ("0.bias" if memory else "")
    made[2].weight = nn.Parameter(made[2].weight.detach().clone())
    assert flat.find_replaced(made, memory=memory) == ("0.bias" if memory else "2.weight")


def test_a_new_parameter_is_found():
    made = network()
    flat = FlatState(made)
    made.append(nn.Linear(2, 2))
    assert flat.find_replaced(made, memory=True) == "3.weight"


def chained(layer: nn.Linear) -> nn.Linear:
    return spectral_norm(torch.nn.utils.parametrizations.orthogonal(layer))


@pytest.mark.parametrize("normalize", [spectral_norm, nn.utils.spectral_norm, chained])
def test_averaged_weights_have_the_largest_singular_value_of_spectral_norm(normalize):
    networks = []
    for seed in range(2):
        torch.manual_seed(seed)
        networks.append(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), normalize(nn.Linear(8, 8))))
    states = [FlatState(network) for network in networks]
    for state in states:
        state.batch_norm.variances_to_moments()
    mean = sum(state.vector for state in states) / 2
    for network, state in zip(networks, states, strict=True):
        state.vector.copy_(mean)
        state.batch_norm.moments_to_variances(replicas_are_equal=True)
        network.eval()
        network(torch.zeros(1, 6))  # the hook of the older function computes the weight
        assert torch.linalg.matrix_norm(network[2].weight, 2).item() == pytest.approx(1.0, rel=0.05)
        for name, vector in network.named_buffers():
            if name.rsplit("_", 1)[-1] in ("u", "v"):
                assert float(vector.norm()) == pytest.approx(1.0)
