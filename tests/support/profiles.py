"""A profile made by hand, with numbers that are easy to compute with."""

from typing import Any

import torch

from tenfold.data import Splits, Tensors
from tenfold.experiment import Experiment
from tenfold.prediction.measurements import Averaging, Costs, Evaluating, Step
from tenfold.prediction.profile import Profile
from tenfold.workers.task import Resolved, Task

FACTS: dict[str, Any] = {"cpu": {"model": "Quick 1", "logical": 4, "budget": 4}, "torch": {"version": "2.10"}}


def task_on_zeros(samples: int, **fields: Any) -> Task:
    """Return a task with a small network and one thread; `fields` are those of its experiment."""
    part = Tensors(torch.zeros(samples, 3), torch.zeros(samples, 1))
    splits = Splits(name="zeros", train=part, shape=(3,), classes=None, outputs=1)
    return Task.of(Resolved.of(Experiment(**{"model": "mlp", "hidden": [4], "epochs": 2} | fields)), splits, threads=1)


def made_profile(work: str = "mlp") -> Profile:
    """Return a machine of 4 cores on which 4 workers are half as fast as one, and 1 MB is averaged in 2 ms."""
    shared: Any = {"transport": "shared-memory", "latency": 1e-3, "bandwidth": 1e9}
    alone: Any = {"work": work, "threads": 1, "workers": 1}
    return Profile(
        made="2026-01-01T00:00:00+00:00",
        machine=FACTS,
        costs=Costs(adding=1e-10, start={1: 0.1, 4: 0.4}, save={1000: 0.01}),
        averaging=(
            Averaging(workers=2, kind="group", fan=2, seconds={1_000_000: 1e-3}, **shared),
            Averaging(workers=4, kind="group", fan=2, seconds={1_000_000: 1.5e-3}, **shared),
            Averaging(workers=4, kind="group", fan=4, seconds={1_000: 1e-3, 1_000_000: 2e-3}, **shared),
            Averaging(workers=4, kind="neighbors", fan=3, seconds={1_000_000: 3e-3}, **shared),
        ),
        evaluating=(Evaluating(samples=100, seconds=0.01, **alone),),
        steps=(
            Step(batch_size=16, mean=0.4e-3, **alone),
            Step(batch_size=64, mean=1e-3, **alone),
            Step(
                work=work,
                batch_size=64,
                threads=1,
                workers=4,
                mean=2e-3,
                trace=("1000 1000 1000", "1000 900 1100", "1000 1000 1000", "1000 1000 1000"),
            ),
        ),
    )
