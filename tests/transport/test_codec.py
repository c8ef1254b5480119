"""What ranks send one another: any value comes back as it was, and nothing but values can come."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from looped import looped

import tenfold
from tenfold.engines.launched_rank import Orders
from tenfold.errors import DataError, TrainingError, WorkerLost
from tenfold.runs.events import Metric, Warned
from tenfold.training.evaluation import EvaluatedShare
from tenfold.training.metrics import ExactSum, PairCounts
from tenfold.transport import codec
from tenfold.workers.coordinator import EpochTrained, Evaluated

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.just("$type"), inner)
    ),
    max_leaves=20,
)


def sent(value: Any) -> Any:
    header, parts = codec.encode(value)
    received = codec.Received(header)
    for buffer, part in zip(received.buffers, parts, strict=True):
        buffer.copy_(part)
    return received.value()


@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert sent(value) == value


@looped("dtype", codec.DTYPES.values())
@looped("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_tensors_come_back_as_they_were(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    back = sent([tensor, tensor.T if tensor.ndim == 2 else tensor])
    assert back[0].dtype == dtype
    assert torch.equal(back[0], tensor)
    assert back[1].shape == (tensor.T if tensor.ndim == 2 else tensor).shape


def test_registered_dataclasses_come_back_as_they_were() -> None:
    events = [
        Warned(at=0.1, text="not pinned"),
        Metric(at=1, name="a", value=float("inf"), part="test", step=1, epoch=0, seconds=2),
    ]
    outputs = torch.arange(6.0).view(2, 3)
    sums = {"loss": {"sum": ExactSum.of(outputs), "count": torch.tensor(2)}}
    pairs = {"f1": {"pairs": PairCounts.of(torch.tensor([1, 0]), torch.tensor([1, 1]), 2)}}
    share = EvaluatedShare(samples=2, sums=sums | pairs, outputs=outputs, main_shape=(2, 3))
    trained = EpochTrained(epoch=1, step=2, seconds=0.5, loss=1e-300, samples=7, share=share)
    back_events, back = sent((events, trained))
    assert back_events == events
    assert torch.equal(back.share.outputs, outputs)
    assert back.share.sums["loss"]["sum"] == sums["loss"]["sum"]
    assert back.share.sums["f1"]["pairs"].counts.tolist() == [1, 1]
    assert back.share.main_shape == (2, 3)
    assert (back.epoch, back.loss) == (1, 1e-300)
    assert sent(Evaluated(epoch=1, step=2, seconds=0.5, share=None)).step == 2
    assert sent(Orders(Path("a/b"), {"epoch": 3}, 1.5)) == Orders(Path("a/b"), {"epoch": 3}, 1.5)


@dataclass
class Unknown:
    text: str


@looped("value", [Unknown("x"), object(), {1, 2}, b"bytes", torch.float32])
def test_other_objects_are_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent to another rank"):
        codec.encode([value])


@looped(
    "header",
    [
        b"",
        b"\x80\x04\x95",
        b"[]",
        b'{"value": 1}',
        b"[" * 100_000,
        json.dumps({"value": {"$type": "Path", "fields": {}}, "tensors": []}).encode(),
        json.dumps({"value": {"$type": "Unknown", "fields": {"text": "x"}}, "tensors": []}).encode(),
        json.dumps({"value": {"$type": "Orders", "fields": {"__class__": 1}}, "tensors": []}).encode(),
        json.dumps({"value": {"$type": "tensor", "number": 0}, "tensors": []}).encode(),
        json.dumps({"value": 1, "tensors": [["float32", [1 << 40]]]}).encode(),
        json.dumps({"value": 1, "tensors": [["float32", [-1]]]}).encode(),
        json.dumps({"value": 1, "tensors": [["float32", ["3"]]]}).encode(),
        json.dumps({"value": 1, "tensors": [["object", [3]]]}).encode(),
    ],
)
def test_what_cannot_be_read_is_an_error(header: bytes) -> None:
    with pytest.raises(TrainingError, match="message"):
        codec.Received(header).value()


class TestErrors:
    @looped(
        ("error", "kind", "message"),
        [
            (DataError("no file"), DataError, "worker 2: no file"),
            (WorkerLost(1, "worker 1 died"), WorkerLost, "worker 1 died"),
            (KeyboardInterrupt(), WorkerLost, "worker 2 was interrupted"),
            (ZeroDivisionError("a mistake"), RuntimeError, "worker 2 failed:\nZeroDivisionError: a mistake"),
        ],
    )
    def test_travel_by_name_and_message(self, error: BaseException, kind: type[Exception], message: str) -> None:
        back = codec.decode_error(codec.encode_error(error, 2))
        assert type(back) is kind
        assert str(back) == message

    def test_of_a_lost_worker_name_its_rank(self) -> None:
        back = codec.decode_error(codec.encode_error(WorkerLost(1, "worker 1 died"), 2))
        assert isinstance(back, WorkerLost)
        assert back.rank == 1

    @looped("content", [b"", b"\x80\x04", b"{}", b'{"type": "eval", "message": "1", "rank": 0}', b"9" * 10**6])
    def test_that_cannot_be_read_are_said_to_be_so(self, content: bytes) -> None:
        assert "cannot be read" in str(codec.decode_error(content))


UNPICKLING = re.compile(
    r"\bpickle\.\w|\bcloudpickle\.|\bmarshal\b|torch\.load\(|np\.load\(|allow_pickle|object_list|_object\(|gather_object"
    r"|\.(?:bcast|gather|scatter|isend|irecv|alltoall|allgather|sendrecv)\(.*(?:world|comm)|\.recv\(\)"
)
HARMLESS = re.compile(r"weights_only=True|allow_pickle=False")
ALLOWED = {
    "workers/pool.py": "pipes between a program and the worker processes that it started",
    "workers/process.py": "the task, which goes through these pipes",
    "prediction/library_averaging.py": "the same pipes, while calibrating",
    "crossval/modes.py": "the same pipes, of processes that train folds",
    "experiment/values.py": "a user's own objects, which go through these pipes, and models that are trusted",
    "executors/jobs.py": "a user's own objects, which go to an executor that the user named",
    "runs/checkpoint.py": "torch.load with weights_only=True",
}


def code_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]


def test_only_pipes_of_our_own_processes_carry_pickles() -> None:
    package = Path(tenfold.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(UNPICKLING.search(line) and not HARMLESS.search(line) for line in code_lines(path))
    }
    assert found <= set(ALLOWED)
    assert not {path for path in found if path.startswith(("transport/", "engines/", "loop/", "launch/"))}
