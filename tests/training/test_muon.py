import copy

import pytest
import torch
from looped import looped
from torch import nn

from tenfold.data import Tensors
from tenfold.experiment import Training
from tenfold.registry import MODELS
from tenfold.training import Replica
from tenfold.training.muon import COEFFICIENTS, Muon, as_matrices, factors, find_matrices, gram
from tenfold.training.schedules import plan_lr_schedule
from tenfold.training.stack import StackedReplicas
from tenfold.training.stacked_optimizers import make_rule

STEPS = 3


def plain(z, steps=STEPS):
    """Newton-Schulz as it is usually written, in double precision."""
    a, b, c = COEFFICIENTS
    x = z.double() if z.shape[0] <= z.shape[1] else z.double().T
    x = x / x.norm()
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return (x if z.shape[0] <= z.shape[1] else x.T).float()


def lenet(seed=0, **options):
    torch.manual_seed(seed)
    return MODELS["lenet5"]((1, 28, 28), 10, **options)


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_iterating_gram_matrices_gives_what_the_plain_iteration_gives(steps):
    torch.manual_seed(0)
    zs = [torch.randn(1, *shape) for shape in ((6, 25), (16, 150), (120, 400), (400, 120), (10, 84), (7, 7))]
    for z, q in zip(zs, factors([gram(z) for z in zs], steps), strict=True):
        found = q @ z if z.shape[1] <= z.shape[2] else z @ q
        assert torch.allclose(found[0], plain(z[0], steps), atol=1e-5)


def test_a_gradient_of_zero_moves_nothing():
    weight = nn.Parameter(torch.ones(4, 3))
    optimizer = Muon([weight])
    weight.grad = torch.zeros(4, 3)
    optimizer.step()
    assert torch.equal(weight, torch.ones(4, 3))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(8, 20), (20, 8)])
def test_steps_are_those_of_torch_but_for_its_half_precision(shape, nesterov):
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(5, *shape)
    options = {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.2, "nesterov": nesterov}
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = Muon([ours], steps=4, **options), torch.optim.Muon([theirs], ns_steps=4, **options)
    for gradient in gradients:
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert (theirs - start).abs().max() > 0.1
    assert torch.allclose(ours, theirs, atol=0.01)


def test_a_convolution_is_a_matrix_with_a_row_per_channel_whatever_its_layout():
    torch.manual_seed(0)
    start, gradient = torch.randn(6, 4, 3, 3), torch.randn(6, 4, 3, 3)
    moved = []
    for layout in (torch.contiguous_format, torch.channels_last):
        for given in (torch.contiguous_format, torch.channels_last):
            network = nn.Conv2d(4, 6, 3, bias=False)
            network.weight.data = start.clone().contiguous(memory_format=layout)
            network.weight.grad = gradient.clone().contiguous(memory_format=given)
            Muon(network, lr=1.0).step()
            moved.append(start - network.weight.detach())
    for item in moved:
        assert torch.allclose(item.flatten(1), plain(gradient.flatten(1)), atol=1e-5)


def test_queries_keys_and_values_are_three_matrices():
    torch.manual_seed(0)
    network = nn.MultiheadAttention(8, 2)
    start = network.in_proj_weight.detach().clone()
    network.in_proj_weight.grad = torch.randn(24, 8)
    Muon(network, lr=1.0).step()
    for before, after, gradient in zip(
        start.chunk(3), network.in_proj_weight.detach().chunk(3), network.in_proj_weight.grad.chunk(3), strict=True
    ):
        assert torch.allclose(before - after, plain(gradient), atol=1e-5)


@looped(
    ("shape", "block", "expected"),
    [
        ((512, 784), 64, (8, 64, 784)),
        ((120, 400), 64, (2, 60, 400)),
        ((84, 120), 64, (1, 84, 120)),  # 84 is closer to 64 than 42 is
        ((64, 784), 64, (1, 64, 784)),
        ((784, 64), 64, (1, 784, 64)),
        ((101, 200), 64, (1, 101, 200)),  # a prime number of rows
        ((10006, 784), 64, (1, 10006, 784)),  # divisible by 2 and by a large prime only
        ((185, 200), 64, (5, 37, 200)),
        ((512, 784), 1000, (1, 512, 784)),
    ],
)
def test_large_matrices_are_divided_into_blocks_of_rows(shape, block, expected):
    weight = nn.Parameter(torch.zeros(shape))
    assert find_matrices([weight], block=block)[weight] == expected


def test_a_block_steps_as_a_matrix_of_its_own():
    torch.manual_seed(0)
    whole, gradient = nn.Parameter(torch.randn(6, 8)), torch.randn(6, 8)
    parts = [nn.Parameter(part.clone()) for part in whole.detach().split(2)]
    whole.grad = gradient
    for part, grad in zip(parts, gradient.split(2), strict=True):
        part.grad = grad
    Muon([whole], block=2).step()
    Muon(parts).step()
    assert torch.allclose(whole, torch.cat(parts), atol=1e-6)


def rules(network, **options):
    names = {parameter: name for name, parameter in network.named_parameters()}
    groups = Muon(network, **options).param_groups
    return {names[parameter]: group["rule"] for group in groups for parameter in group["params"]}


def test_every_kind_of_parameter_has_its_rule():
    network = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3), nn.Linear(3, 1))
    usual = rules(network)
    assert [name for name, rule in usual.items() if rule == "muon"] == ["1.weight", "3.weight"]
    assert [name for name, rule in usual.items() if rule == "adamw"] == ["0.weight"]
    assert rules(network, embeddings="partner")["0.weight"] == "sgd"
    assert rules(network, output="partner")["3.weight"] == "sgd"
    tied = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
    tied[1].weight = tied[0].weight
    assert rules(tied) == {"0.weight": "adamw"}
    assert rules(nn.EmbeddingBag(9, 4)) == {"weight": "adamw"}


@pytest.mark.parametrize(("options", "rate"), [({}, 0.01), ({"embedding_lr": 0.3}, 0.3)])
def test_embeddings_step_as_with_adamw_alone(options, rate):
    torch.manual_seed(0)
    ours, gradients = nn.Embedding(6, 3), torch.randn(4, 6, 3)
    theirs = copy.deepcopy(ours)
    mixed = Muon(nn.Sequential(ours, nn.Linear(3, 3)), lr=0.02, weight_decay=0.1, **options)
    alone = torch.optim.AdamW(theirs.parameters(), lr=rate, weight_decay=0.1)
    for gradient in gradients:
        ours.weight.grad, theirs.weight.grad = gradient.clone(), gradient.clone()
        mixed.step()
        alone.step()
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)


def test_wrong_rules_and_rates_of_embeddings_are_named():
    for options in ({"embeddings": "muon"}, {"embedding_lr": -1.0}):
        with pytest.raises(ValueError, match="embedding"):
            Muon(nn.Embedding(3, 2), **options)


def test_embeddings_vectors_and_on_request_the_output_are_no_matrices():
    network = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3), nn.Linear(3, 1))
    names = {parameter: name for name, parameter in network.named_parameters()}
    assert [names[find_matrice] for find_matrice in find_matrices(network)] == ["1.weight", "3.weight"]
    assert [names[find_matrice] for find_matrice in find_matrices(network, output="partner")] == ["1.weight"]
    tied = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
    tied[1].weight = tied[0].weight
    assert not find_matrices(tied)


@pytest.mark.parametrize("partner", ["sgd", "adamw"])
def test_the_partner_steps_as_it_would_alone_with_its_own_rate(partner):
    torch.manual_seed(0)
    gradients = torch.randn(4, 7)
    ours, theirs = nn.Parameter(torch.ones(7)), nn.Parameter(torch.ones(7))
    mixed = Muon([nn.Parameter(torch.ones(3, 3)), ours], lr=0.02, partner=partner, partner_lr=0.3, weight_decay=0.1)
    alone = (
        torch.optim.SGD([theirs], lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.1)
        if partner == "sgd"
        else torch.optim.AdamW([theirs], lr=0.3, weight_decay=0.1)
    )
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mixed.step()
        alone.step()
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert [group["lr"] for group in mixed.param_groups] == [0.02, 0.3]


def replica(network, options, **fields):
    training = Training(optimizer="muon", optimizer_options=options, epochs=2, **fields)
    return Replica(network, training, nn.functional.cross_entropy, steps_per_epoch=6)


@pytest.mark.parametrize("options", [{}, {"block": 5}, {"partner": "adamw"}, {"output": "partner"}])
def test_a_loaded_state_goes_on_bit_for_bit(options):
    x, y = torch.randn(16, 1, 28, 28), torch.arange(16) % 10
    first = replica(lenet().to(memory_format=torch.channels_last), options)
    for _ in range(3):
        first.step(x, y)
    second = replica(lenet(1).to(memory_format=torch.channels_last), options)
    second.load(copy.deepcopy(first.state()))
    for _ in range(3):
        first.step(x, y)
        second.step(x, y)
    assert torch.equal(first.flat.vector, second.flat.vector)


def test_a_state_that_divides_matrices_otherwise_leaves_the_division_alone():
    def stepped(block):
        torch.manual_seed(0)
        layer = nn.Linear(128, 128)
        optimizer = Muon(layer, block=block)
        layer(torch.ones(1, 128)).sum().backward()
        optimizer.step()
        return optimizer

    whole, blocks = stepped(128), stepped(64)
    blocks.load_state_dict(whole.state_dict())
    assert [group.get("shapes") for group in blocks.param_groups] == [[(2, 64, 128)], None]
    weight, saved = blocks.param_groups[0]["params"][0], whole.param_groups[0]["params"][0]
    assert torch.equal(blocks.state[weight]["momentum_buffer"], whole.state[saved]["momentum_buffer"])
    copied = copy.deepcopy(blocks)
    copied.step()
    assert copied.param_groups[0]["shapes"] == [(2, 64, 128)]


def test_a_schedule_scales_both_rates():
    one = replica(lenet(), {"partner_lr": 0.2}, lr=0.02, warmup=1.0)
    one.begin_step()
    low = [group["lr"] for group in one.optimizer.param_groups]
    assert low[1] == pytest.approx(10 * low[0])
    assert low[0] < 0.02


def test_only_the_rate_of_matrices_grows_with_the_workers():
    training = Training(optimizer="muon", lr=0.02)
    one = Replica(lenet(), training, nn.functional.cross_entropy, steps_per_epoch=9, lr_scale=4.0)
    one.begin_step()
    assert [group["lr"] for group in one.optimizer.param_groups] == pytest.approx([0.08, 0.05])
    assert make_rule(training, lenet(), 0.08).lr_ratio * 0.08 == pytest.approx(0.05)


@pytest.mark.parametrize("method", ["loop", "vmap"])
@pytest.mark.parametrize("options", [{}, {"block": 5}, {"partner": "adamw", "partner_lr": 0.01}, {"output": "partner"}])
def test_stacked_replicas_step_as_each_would_alone(method, options):
    torch.manual_seed(0)
    part = Tensors(torch.randn(48, 1, 28, 28), torch.arange(48) % 10)
    training = Training(optimizer="muon", lr=0.01, schedule="cosine", optimizer_options=options, weight_decay=0.1)
    loss = nn.functional.cross_entropy
    batches = torch.randint(48, (5, 3, 8))
    batchnorm = "partner" not in options  # a bias before it has a gradient of rounding errors, which adamw enlarges
    network = lenet(batchnorm=batchnorm)
    frozen = next(iter(network.parameters()))
    frozen.requires_grad_(False)
    alone = [Replica(copy.deepcopy(network), training, loss, steps_per_epoch=9) for _ in range(3)]
    lr_schedule = plan_lr_schedule(training, steps_per_epoch=9)
    stacked = StackedReplicas(network, 3, training, loss, part, lr_schedule=lr_schedule, method=method)
    for step in batches:
        stacked.step(step)
        for one, batch in zip(alone, step, strict=True):
            one.step(part.x[batch], part.y[batch])
    for row, one in zip(stacked.stack.matrix, alone, strict=True):
        assert torch.allclose(row, one.flat.vector, atol=2e-4)


class Words(nn.Module):
    """Two embeddings, one of them shared with the output, and a matrix between them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(20, 6), nn.Embedding(5, 6)
        self.hidden, self.output = nn.Linear(6, 6), nn.Linear(6, 20)
        self.output.weight = self.words.weight

    def forward(self, x):
        return self.output(torch.relu(self.hidden(self.words(x) + self.places.weight)))


@pytest.mark.parametrize("options", [{}, {"embedding_lr": 0.02}, {"embeddings": "partner"}, {"partner": "adamw"}])
@pytest.mark.parametrize("frozen", ["", "places", "hidden"])
def test_stacked_embeddings_step_as_each_would_alone(options, frozen):
    network, x = Words(), torch.randint(20, (12, 6), generator=torch.Generator().manual_seed(0))
    if frozen:
        network.get_submodule(frozen).requires_grad_(False)
    part = Tensors(x[:, :-1].contiguous(), x[:, 1:].contiguous())

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    training = Training(optimizer="muon", batch_size=4, optimizer_options=options, weight_decay=0.1)
    alone = [Replica(copy.deepcopy(network), training, loss, steps_per_epoch=9, labels_per_sample=5) for _ in range(2)]
    lr_schedule = plan_lr_schedule(training, steps_per_epoch=9, labels_per_sample=5)
    stacked = StackedReplicas(network, 2, training, loss, part, lr_schedule=lr_schedule, method="loop")
    for step in torch.randint(12, (5, 2, 4), generator=torch.Generator().manual_seed(1)):
        stacked.step(step)
        for one, batch in zip(alone, step, strict=True):
            one.step(part.x[batch], part.y[batch])
    for row, one in zip(stacked.stack.matrix, alone, strict=True):
        assert torch.allclose(row, one.flat.vector, atol=2e-4)


def test_as_matrices_is_a_view():
    tensor = torch.zeros(6, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    as_matrices(tensor, (1, 6, 36)).add_(1)
    assert tensor.min() == 1
