"""The serial engine on a device that records steps: played by a CPU, and on a GPU where there is one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import SMALL, Numbered
from threaded import make_task
from torch import nn

from tenfold.engines import Outcome
from tenfold.engines.processes import Serial
from tenfold.errors import ModelError
from tenfold.runs import Event, Stopwatch, Warned, checkpoint
from tenfold.runs.checkpoint import Resumption
from tenfold.training import replica
from tenfold.training import stack as stacked
from tenfold.workers.task import Task
from tenfold.workers.worker import Worker

FEW: dict[str, Any] = SMALL | {"limit": 90, "epochs": 3, "batch_size": 8, "schedule": "cosine", "hidden": [8]}


def run(task: Task, resumption: Resumption | None = None) -> tuple[Outcome, list[Event]]:
    events: list[Event] = []
    return Serial().run(task, Stopwatch(), events.append, resumption), events


def warnings(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Warned)]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the CPU record: a replay is the step done again. Lists the sizes of the batches that were replayed."""
    replayed: list[int] = []

    def capture(step: Any, example: torch.Tensor) -> Any:
        step(example)

        def replay(values: torch.Tensor) -> torch.Tensor:
            replayed.append(values.shape[1])
            return step(values)  # type: ignore[no-any-return]

        return replay

    for module in (stacked, replica):
        monkeypatch.setattr(module, "supports_graphs", lambda device: True)
    monkeypatch.setattr(stacked, "capture", capture)
    return replayed


@pytest.mark.parametrize(
    "fields",
    [
        {"batchnorm": True},
        {"optimizer": "adam"},
        {"optimizer": "muon"},
        {"dropout": 0.4},
        {"epochs": 9, "patience": 1, "lr": 0.9},
    ],
)
def test_recorded_steps_learn_the_same(
    fields: dict[str, Any], recorder: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(**FEW | fields)
    outcome, events = run(task)
    once_at_startup = 1
    assert recorder.count(8) == once_at_startup + outcome.result["epochs"] * sum(
        sizes == (8,) for sizes in task.batch_sizes
    )
    assert warnings(events) == []
    for module in (stacked, replica):
        monkeypatch.setattr(module, "supports_graphs", lambda device: False)
    expected, _ = run(task)
    for name, tensor in expected.weights.items():
        torch.testing.assert_close(outcome.weights[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    for key in ("epochs", "steps", "samples", "best_epoch", "stopped_early"):
        assert outcome.result[key] == expected.result[key]


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_it_is_resumed_with_the_same_numbers(
    optimizer: str, recorder: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = FEW | {"optimizer": optimizer, "dropout": 0.2}
    whole, _ = run(make_task(**fields))

    class Stop(Exception):  # noqa: N818
        pass

    finish = Worker._finish

    def interrupt(self: Worker) -> None:
        raise Stop

    monkeypatch.setattr(Worker, "_finish", interrupt)
    with pytest.raises(Stop):
        run(make_task(tmp_path, **fields))
    monkeypatch.setattr(Worker, "_finish", finish)
    manifest = checkpoint.find_undamaged(tmp_path)[0]
    assert manifest is not None
    resumed, _ = run(make_task(tmp_path, **fields), Resumption(tmp_path, manifest))
    assert all(torch.equal(resumed.weights[name], tensor) for name, tensor in whole.weights.items())


def test_why_steps_are_not_recorded_is_told(recorder: list[int]) -> None:
    _, events = run(make_task(**FEW | {"data": Numbered(40), "epochs": 1}))
    assert warnings(events) == [
        "steps are not captured in a CUDA graph, which is slow for small networks: "
        "the data are read sample by sample and do not stay on the device"
    ]
    _, events = run(make_task(**FEW | {"epochs": 1, "average": "gradients"}))
    assert len(warnings(events)) == 1
    assert recorder == []


def test_a_network_that_fails_says_so_as_ever(recorder: list[int]) -> None:
    with pytest.raises(ModelError, match="float32"):
        run(make_task(**FEW | {"model": lambda: nn.Linear(3, 2), "hidden": None}))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize(
    "fields", [{}, {"optimizer": "adam"}, {"optimizer": "adagrad"}, {"optimizer": "muon"}, {"batchnorm": True}]
)
def test_a_gpu_learns_what_a_cpu_learns(fields: dict[str, Any]) -> None:
    on_gpu, events = run(make_task(**FEW | fields, device="cuda"))
    on_cpu, _ = run(make_task(**FEW | fields))
    assert warnings(events) == []
    assert on_gpu.result["metrics"]["loss"] == pytest.approx(on_cpu.result["metrics"]["loss"], rel=1e-2)
