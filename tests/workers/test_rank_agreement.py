"""What ranks compare before they train, and how a difference is named."""

import threading
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tenfold.engines.rank import (
    describe_layers,
    describe_software,
    describe_sources,
    describe_tensors,
    require_same,
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


def compared(*described: Any) -> list[str]:
    """Return what each rank says when they compare these."""
    ranks, said = Ranks(len(described)), [""] * len(described)

    def compare(rank: int) -> None:
        try:
            require_same(ranks.one(rank), described[rank], REMEDY)
        except (ExperimentError, TrainingError) as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=compare, args=(rank,)) for rank in range(len(described))]
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
