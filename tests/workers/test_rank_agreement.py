"""What ranks compare before they train, and how a difference is named."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from looped import looped
from torch import nn

from tenfold.engines.launched_rank import (
    describe_attributes,
    describe_layers,
    describe_methods,
    describe_software,
    describe_sources,
    describe_tensors,
    describe_values,
    require_same,
    require_same_values,
)
from tenfold.errors import ExperimentError, TrainingError

REMEDY = "start all alike"


class Ranks:
    """Ranks as threads, of which each sends what it was given."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=10)
        self.values: list[Any] = [None] * size

    def one(self, rank: int) -> Any:
        ranks = self

        class Network:
            def all_gather(self, value: Any) -> list[Any]:
                ranks.values[rank] = value
                ranks.barrier.wait()
                everyone = list(ranks.values)
                ranks.barrier.wait()
                return everyone

        return Network()


def compared(*described: Any, compare: Callable[..., None] = require_same) -> list[str]:
    """Return what each rank says when they compare these."""
    ranks, said = Ranks(len(described)), [""] * len(described)

    def ask(rank: int) -> None:
        try:
            compare(ranks.one(rank), described[rank], REMEDY)
        except (ExperimentError, TrainingError) as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(len(described))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return said


def test_ranks_that_are_the_same_go_on() -> None:
    assert compared({"a": "1", "b": "2"}, {"b": "2", "a": "1"}) == ["", ""]


def test_every_rank_gets_the_same_sentence_with_fields_and_ranks() -> None:
    said = compared({"lr": "1", "x": "0"}, {"lr": "2", "x": "0"}, {"lr": "1"})
    assert len(set(said)) == 1
    assert "lr is 1 on ranks 0 and 2, 2 on rank 1" in said[0]
    assert "x is 0 on ranks 0 and 1, missing on rank 2" in said[0]
    assert said[0].endswith(REMEDY)


def test_long_values_that_differ_at_their_end_are_told_apart() -> None:
    assert "options is" in compared({"options": "x" * 500}, {"options": "x" * 499 + "y"})[0]


def test_what_a_peer_sends_reaches_no_terminal_as_a_command() -> None:
    assert "\x1b" not in compared({"lr": "1"}, {"lr\x1b[2J": "\x1b]0;title\x07"})[0]


@pytest.mark.parametrize(
    ("here", "there", "name"),
    [
        (nn.Linear(3, 2), nn.Linear(3, 4), "weight"),
        (nn.Linear(3, 2), nn.Linear(3, 2).double(), "weight"),
        (nn.Linear(3, 2), nn.Linear(3, 2, bias=False), "bias"),
        (nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False), "not trained"),
        (nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), "running_mean"),
        (nn.Dropout(0.1), nn.Dropout(0.2), "p=0.1"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2), nn.Tanh()), "ReLU"),
    ],
)
def test_networks_that_differ_are_told_apart(here: nn.Module, there: nn.Module, name: str) -> None:
    described = [describe_tensors(item) | describe_layers(item) for item in (here, there)]
    assert name in compared(*described)[0]


def test_networks_that_begin_with_other_weights_are_the_same() -> None:
    described = [describe_tensors(item) | describe_layers(item) for item in (nn.Linear(3, 2), nn.Linear(3, 2))]
    assert compared(*described) == ["", ""]


def test_the_code_of_a_class_and_of_its_bases_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "based.py").write_text("from torch import nn\nclass Base(nn.Module): pass\n")
    (tmp_path / "derived.py").write_text("from based import Base\nclass Net(Base): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from derived import Net

    before = describe_sources([Net()])
    assert set(before) == {"source code of derived", "source code of based"}
    (tmp_path / "based.py").write_text("from torch import nn\nclass Base(nn.Module): x = 1\n")
    after = describe_sources([Net])
    assert [name for name in before if before[name] != after[name]] == ["source code of based"]


def test_functions_that_a_model_imports_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helping.py").write_text("import json\ndef swish(x): return x * x.sigmoid()\n")
    (tmp_path / "helped.py").write_text("from torch import nn\nfrom helping import swish\nclass Net(nn.Module): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from helped import Net

    before = describe_sources([Net()])
    (tmp_path / "helping.py").write_text("def swish(x): return x\n")
    assert set(before) == {"source code of helped", "source code of helping"}
    assert describe_sources([Net()]) != before


def test_versions_are_compared() -> None:
    own = describe_software()
    assert "torch" in compared(own, own | {"version of torch": "1.0"})[0]
    assert {"version of tenfold", "version of Python"} < set(own)


def scaled(weight: float, classes: list[float]) -> Any:
    weights = torch.tensor(classes)
    return lambda outputs, targets: weight * nn.functional.cross_entropy(outputs, targets, weight=weights)


@looped(
    ("one", "other", "what"),
    [
        (scaled(1.0, [1, 2]), scaled(2.0, [1, 2]), "weight"),
        (scaled(1.0, [1, 2]), scaled(1.0, [1, 3]), "weights"),
        (partial(torch.optim.SGD, momentum=0.9), partial(torch.optim.SGD, momentum=0.8), "momentum"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(), "label_smoothing"),
        (nn.NLLLoss(weight=torch.ones(2)), nn.NLLLoss(weight=torch.zeros(2)), "weight"),
    ],
)
def test_values_that_python_objects_hold(one: Any, other: Any, what: str) -> None:
    same = describe_values({"loss": one})
    assert same == describe_values({"loss": one})
    [said] = compared(same, describe_values({"loss": other}))[:1]
    assert f"{what} of the loss" in said


def test_what_a_script_defines_in_another_way() -> None:
    def losses(twice: bool) -> Any:
        if twice:
            return lambda outputs, targets: 2 * nn.functional.cross_entropy(outputs, targets)
        return lambda outputs, targets: nn.functional.cross_entropy(outputs, targets)

    def layers(doubles: bool) -> nn.Module:
        class Net(nn.Module):
            if doubles:

                def forward(self, x: Any) -> Any:
                    return 2 * x
            else:

                def forward(self, x: Any) -> Any:
                    return x if "a" in {"a", "b", "c"} else None

        return Net()

    assert compared(*(describe_values({"loss": losses(False)}) for _ in range(2))) == ["", ""]
    assert "code" in compared(*(describe_values({"loss": losses(twice)}) for twice in (False, True)))[0]
    assert compared(*(describe_methods(layers(False)) for _ in range(2))) == ["", ""]
    assert "forward" in compared(*(describe_methods(layers(doubles)) for doubles in (False, True)))[0]
    assert describe_methods(nn.Linear(2, 2)) == {}


class Layer(nn.Module):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope


def test_numbers_that_layers_keep() -> None:
    assert describe_attributes(nn.Sequential(Layer(0.1))) != describe_attributes(nn.Sequential(Layer(0.2)))
    assert describe_attributes(nn.Linear(2, 2)) == {}


def test_values_may_say_which_rank_it_is() -> None:
    """As those of functions that print on rank 0 alone."""
    rows = [{"rank of the loss": str(rank), "main of the loss": str(not rank)} for rank in range(3)]
    assert compared(*rows, compare=require_same_values) == ["", "", ""]
    rows[2]["main of the loss"] = "True"
    assert "main of the loss" in compared(*rows, compare=require_same_values)[0]
