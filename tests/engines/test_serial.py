"""The serial engine on a device that records steps: played by a CPU, and on a GPU where there is one."""

from typing import Any

import pytest
import torch
from engine_models import SMALL
from threaded import make_task

from tenfold.engines import Outcome
from tenfold.engines.processes import Serial
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Event, Stopwatch, Warned
from tenfold.workers.task import Task

FEW: dict[str, Any] = SMALL | {"limit": 90, "epochs": 3, "batch_size": 8, "schedule": "cosine", "hidden": [8]}


def run(task: Task, resumption: Resumption | None = None) -> tuple[Outcome, list[Event]]:
    events: list[Event] = []
    return Serial().run(task, Stopwatch(), events.append, resumption), events


def warnings(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Warned)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize(
    "fields", [{}, {"optimizer": "adam"}, {"optimizer": "adagrad"}, {"optimizer": "muon"}, {"batchnorm": True}]
)
def test_a_gpu_learns_what_a_cpu_learns(fields: dict[str, Any]) -> None:
    on_gpu, events = run(make_task(**FEW | fields, device="cuda"))
    on_cpu, _ = run(make_task(**FEW | fields))
    assert warnings(events) == []
    assert on_gpu.result["metrics"]["loss"] == pytest.approx(on_cpu.result["metrics"]["loss"], rel=1e-2)
