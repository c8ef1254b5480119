"""Networks that are cut into stages compute what the whole network does, and keep its names."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tenfold.errors import ExperimentError, ModelError
from tenfold.models.networks import cnn
from tenfold.training.stages import LayerSegment, Stage, TracedNetwork, balanced


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.linear(x)))


class Residual(nn.Module):
    """Skips over all of its blocks, needs the size of the batch at the end, and behaves differently in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.blocks = nn.Sequential(Block(), Block())
        self.scale = nn.Parameter(torch.ones(1))
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        count = x.size(0)
        early = self.first(x)
        late = nn.functional.dropout(self.blocks(early), 0.5, self.training)
        return self.last((late + early).view(count, -1)) * self.scale


class Looks(nn.Module):
    """Looks at values, which a trace does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if bool((x > 0).all()) else self.layer(-x)


class Checking(Residual):
    """Checks and loops over shapes, which `torch.fx` cannot trace, and calls a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.arange(3.0)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != 4:
            raise ValueError("four numbers a sample")
        h = early = self.first(x)
        for block in self.blocks:
            h = block(h)
        for place in range(h.shape[1] - 4):
            h = torch.relu(self.blocks[0].linear(self.blocks[0].linear(h))) + place
        h = nn.functional.dropout(h, 0.5, self.training)
        return self.last(h + early) * self.scale + self.shift + torch.tensor([1.0, 2.0, 3.0])


class Attention(nn.Module):
    """Checks shapes, asks for the batch size in several layers, and normalizes by shapes kept as tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(2, 4))
        self.keys, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 4:
            raise ValueError("four numbers a sample")
        count, width = x.shape
        x = self.norm(x.unsqueeze(1) + self.place)
        query, key = self.keys(x).view(count, 2, 2, width).unbind(2)
        return self.last((torch.softmax(query @ key.transpose(1, 2), -1) @ x).reshape(count, -1))


class Named(nn.Module):
    """Takes its inputs by name, one of them only if it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, left: Tensor, mask: Tensor | None = None, *, right: Tensor, scale: float = 2.0) -> Tensor:
        left = torch.relu(self.left(left))
        if mask is not None:
            left = left * mask
        return self.last(left + torch.relu(self.right(right)) * scale)


class OneSize(nn.Module):
    """Works for the batch size only that it was exported with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / len(x) if x.shape[1] == 4 else x


def run(stages: list[Stage], x: Tensor) -> Tensor:
    values = (x,)
    for stage in stages[:-1]:
        values = stage(*values)
    return stages[-1](*values)


class Translating(nn.Module):
    """An encoder, a decoder and both in one, with masks that are causal or not."""

    def __init__(self, *, padded: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 3)
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=not padded)
        self.both = nn.Transformer(4, 2, 1, 2, 8, dropout=0.0, batch_first=True)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(5))
        self.padded = padded

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        masks = {"src_key_padding_mask": x[:, :, 0] > 0.5} if self.padded else {"mask": self.causal}
        x = self.encoder(x, **masks)
        return self.last(self.both(x, x + 1, tgt_mask=self.causal, memory_mask=self.causal < 0))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_stacks_of_transformer_layers_are_cut_between_layers(padded: bool, training: bool) -> None:
    torch.manual_seed(0)
    network = Translating(padded=padded).train(training)
    x = torch.randn(3, 5, 2)
    with torch.set_grad_enabled(training):
        expected = network(x)
    traced = TracedNetwork(network, lambda: x)
    begins = traced.names
    assert {"encoder.layers.1", "both.encoder.layers.0", "both.decoder.layers.1"} <= set(begins)
    values: tuple[Tensor, ...] = (x,)
    with torch.set_grad_enabled(training):
        for stage in traced.cut(begins):
            values = stage.train(training)(*values)
    assert torch.equal(values, expected)


def test_an_encoder_that_leaves_out_padding_in_evaluations_stays_whole() -> None:
    network = Translating(padded=True)
    network.encoder.use_nested_tensor = True
    names = TracedNetwork(network, lambda: torch.randn(3, 5, 2)).names
    assert "encoder" in names
    assert "both.decoder.layers.1" in names


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        (Residual, ["first", "blocks.0.norm", "last"]),
        (Checking, ["first", "last"]),
        (Attention, ["norm", "keys", "last"]),
    ],
)
def test_stages_compute_what_the_network_does(kind: type[Residual], begins: list[str], training: bool) -> None:
    network = kind().train(training)
    x = torch.randn(5, 4)
    stages = TracedNetwork(network, lambda: x[:2]).cut(begins)
    assert network.training is training
    torch.manual_seed(1)
    expected = copy.deepcopy(network)(x)
    for stage in stages:
        stage.train(training)
    torch.manual_seed(1)
    assert torch.equal(run(stages, x), expected)
    assert {name for stage in stages for name in stage.state_dict()} == set(network.state_dict())


def test_slices_and_names_give_the_same_stages() -> None:
    traced = TracedNetwork(cnn((1, 8, 8), 10))
    assert traced.begins(["0:4", "4:"]) == ("0", "4") == traced.begins(["0", "4"])
    assert TracedNetwork(Residual()).begins(["first", "blocks", "last"]) == ("first", "blocks.0.linear", "last")


@pytest.mark.parametrize("stages", [["0:4", "5:"], ["0:9", "9:"], ["1", "4"], ["0", "4", "2"], ["0", "nowhere"]])
def test_stages_that_leave_layers_out_or_mix_their_order_are_refused(stages: list[str]) -> None:
    with pytest.raises(ExperimentError, match=r"parallel\.stages"):
        TracedNetwork(cnn((1, 8, 8), 10)).begins(stages)


def test_a_module_that_cannot_be_traced_is_one_operation_and_a_network_is_refused() -> None:
    assert TracedNetwork(nn.Sequential(nn.Linear(4, 4), Looks(), nn.Linear(4, 2))).names == ["0", "1", "2"]
    with pytest.raises(ModelError, match="stages"):
        TracedNetwork(Looks(), lambda: torch.ones(2, 4))


def test_a_network_that_looks_at_values_or_fixes_the_batch_size_is_refused_in_one_sentence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for network, word in ((Looks(), "values"), (OneSize(), "batch size")):
        with pytest.raises(ModelError, match=word) as caught:
            TracedNetwork(network, lambda: torch.randn(2, 4))
        assert len(str(caught.value).splitlines()) == 1
    assert not any(capfd.readouterr())  # torch would print what it has of the graph


def test_inputs_by_name_are_measured_and_the_others_keep_their_defaults() -> None:
    inputs = {"right": torch.randn(8, 4), "left": torch.randn(8, 4)}
    network = Named().eval()
    traced = TracedNetwork(network, lambda: inputs)
    assert [segment.name for segment in traced.measure(inputs)] == ["left", "right", "last"]
    expected = network(**inputs)
    first, second = traced.cut(["left", "last"])
    assert torch.equal(second(*first(**inputs)), expected)


def test_a_parameter_that_two_stages_would_share_is_refused() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    network[2].weight = network[0].weight
    with pytest.raises(ModelError, match=r"2\.weight"):
        TracedNetwork(network).cut(["0", "2"])


def test_measuring_leaves_the_network_as_it_was() -> None:
    network = Residual()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    segments = TracedNetwork(network).measure(torch.randn(8, 4))
    assert all(segment.seconds > 0 for segment in segments)
    assert segments[1].nbytes == 8 * 6 * 4
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_layers_that_work_in_place_are_measured() -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 2))
    assert [segment.name for segment in TracedNetwork(network).measure(torch.randn(8, 4))] == ["0", "1", "2", "3"]


class Viewed(nn.Module):
    """Changes a view of a tensor in place, and goes on with the tensor; or with what a layer has changed in place."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view, self.first, self.relu, self.last = view, nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * 2
        changed = self.relu(h.view(-1, 6) if self.view else h)
        return self.last(h + changed)


def test_no_stage_begins_between_a_view_and_its_change_in_place() -> None:
    segments = TracedNetwork(Viewed(view=True)).measure(torch.randn(5, 4))
    assert [segment.name for segment in segments if segment.is_aliased] == ["relu"]
    assert balanced(segments, 2) == ("first", "last")
    assert not any(segment.is_aliased for segment in TracedNetwork(Viewed(view=False)).measure(torch.randn(5, 4)))


def test_layers_that_share_parameters_stay_in_one_stage() -> None:
    shared = nn.BatchNorm1d(4, affine=False)  # its running mean changes in every call
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)), shared, nn.Linear(4, 4), shared, nn.Linear(4, 2))
    network[3].weight = network[1].weight
    traced = TracedNetwork(network)
    segments = traced.measure(torch.randn(8, 4))
    assert [segment.name for segment in segments if not segment.is_tied] == ["0", "1", "4", "5", "8"]
    assert len(traced.cut(balanced(segments, 5))) == 5
    with pytest.raises(ExperimentError, match="at most 5"):
        balanced(segments, 6)


def test_the_slowest_stage_is_as_fast_as_possible() -> None:
    segments = [LayerSegment(name, seconds) for name, seconds in zip("abcdef", [5, 1, 1, 1, 4, 2], strict=True)]
    assert balanced(segments, 2) == ("a", "d")
    assert balanced(segments, 3) == ("a", "b", "e")
    assert balanced([LayerSegment("a", 1.0), LayerSegment("b", 1.0, 0), LayerSegment("c", 1.0, 1 << 34)], 2) == (
        "a",
        "b",
    )
    with pytest.raises(ExperimentError, match="at most 6"):
        balanced(segments, 7)


class Changing(nn.Module):
    """Does something else in every call: it counts, or skips its layer at random."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind, self.calls = nn.Linear(4, 4), kind, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "attribute":
            self.calls += 1
            return self.layer(x) * self.calls
        if self.kind == "buffer":
            self.seen += 1
            return self.layer(x) * self.seen
        return x if torch.rand(()) < 0.5 else self.layer(x)


@pytest.mark.parametrize("kind", ["attribute", "buffer", "random"])
def test_what_differs_from_call_to_call_is_not_frozen_by_the_trace(kind: str) -> None:
    changing = Changing(kind)
    network = nn.Sequential(nn.Linear(4, 4), changing, nn.Linear(4, 2))
    state = torch.get_rng_state()
    traced = TracedNetwork(network)
    assert traced.names == ["0", "1", "2"]
    assert changing.calls == changing.seen == 0
    assert torch.equal(torch.get_rng_state(), state)
    stage, x = traced.cut(["0", "1"])[1], torch.ones(2, 4)
    torch.manual_seed(0)
    assert len({tuple(stage(x).flatten().tolist()) for _ in range(8)}) > 1
    with pytest.raises(ModelError, match="trace"):
        TracedNetwork(Changing(kind), lambda: torch.ones(2, 4))
