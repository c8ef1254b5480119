"""One GPU: captured steps, folds side by side and virtual nodes, against eager PyTorch in the same run.

    python benchmarks/gpu.py --json gpu.json

Eager is the usual loop over data that lie on the device already: zero_grad, forward, backward, optimizer step, one
replica after another. Both sides round to tf32, or to bf16 where it says so. Times are training alone: capturing,
evaluating and loading are not in them, on neither side. With `--device cpu --samples 600` it runs without a GPU, to see
that it runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from support.options import make_parser, write_json
from torch import nn

from tenfold.data import SubsetPart, Tensors, order
from tenfold.engines import Outcome
from tenfold.engines.one_device import train_replicas, train_together
from tenfold.engines.prepare import prepare
from tenfold.engines.processes import Serial
from tenfold.errors import TenfoldError
from tenfold.experiment import Experiment
from tenfold.runs.events import Event, Metric, Note, Stopwatch, Warned
from tenfold.training.network_call import autocast
from tenfold.training.replica import set_matmul_precision
from tenfold.workers.task import Resolved, Task, make_network

COMMON = {"data": "mnist", "precision": "tf32", "log_every": 1_000_000, "oversubscribe": True, "optimizer": "sgd"}
LENET = {"model": "lenet5", "batch_size": 256, "lr": 0.2, "epochs": 12, "warmup": 1.0}
MLP = {"model": "mlp", "hidden": [128, 64], "batch_size": 64}
FOLDS, NODES, MANY = 10, 64, 1024
GOAL = 0.9911


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, help="of MNIST; default: all for LeNet-5 and nodes, 20,000 for folds")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("this benchmark needs a GPU that torch can use, and there is none; see `tenfold doctor`")
        return
    fields = COMMON | {"device": arguments.device, "limit": arguments.samples}
    rows: list[dict[str, Any]] = []
    for part in arguments.parts:
        began = perf_counter()
        rows.append(PARTS[part](fields, arguments.repeats))
        print(f"{rows[-1]} [{perf_counter() - began:.1f} s]", flush=True)
    show(rows)
    write_json(arguments.json, rows)


def lenet(fields: dict[str, Any], repeats: int) -> dict[str, Any]:
    """LeNet-5 to the accuracy of the paper, by seeds."""
    ours, eager, best = [], [], []
    for seed in range(repeats):
        task = prepare(Resolved.of(Experiment(**fields | LENET, seed=seed)))
        events: list[Event] = []
        Serial().run(task, Stopwatch(), events.append)
        reached = [
            (event.value, event.seconds) for event in events if isinstance(event, Metric) and event.name == "accuracy"
        ]
        best.append(max(reached)[0])
        ours.append(next((seconds for value, seconds in reached if value >= GOAL), reached[-1][1]))
        epochs = next((epoch for epoch, (value, _) in enumerate(reached, 1) if value >= GOAL), len(reached))
        eager.append(eager_epochs(task, [task.shards[0]], epochs))
    return row("LeNet-5 to 99.11%", eager, ours, "1.0 s", accuracies=best)


def folds(name: str, settings: dict[str, Any], goal: str, fields: dict[str, Any], repeats: int) -> dict[str, Any]:
    """One epoch of all folds."""
    fields = fields | settings | {"epochs": 1, "limit": fields["limit"] or 20_000}
    whole = prepare(Resolved.of(Experiment(**fields)))
    train = whole.splits.train
    parts = np.array_split(np.random.default_rng(0).permutation(len(train)), FOLDS)
    picked = [np.concatenate(parts[:fold] + parts[fold + 1 :]) for fold in range(FOLDS)]
    tasks = [replace(whole, splits=replace(whole.splits, train=SubsetPart(train, rows))) for rows in picked]
    ours, eager, notes = [], [], set()
    for _ in range(repeats):
        events: list[Event] = []
        outcomes = train_together(tasks, Stopwatch(), [events.append] * FOLDS)
        ours.append(seconds_of(outcomes))
        eager.append(eager_epochs(whole, picked, 1))
        notes |= told(events)
    return row(f"{FOLDS} folds of {name}", eager, ours, goal, note="; ".join(notes))


def nodes(fields: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Virtual nodes that average every 16 steps, by the step."""
    settings = {"workers": NODES, "sync_every": 16, "lr_scaling": "none", "epochs": 20}
    task = prepare(Resolved.of(Experiment(**fields | MLP | settings)))
    ours, eager, events = [], [], []
    for _ in range(repeats):
        outcome = train_replicas(task, Stopwatch(), events.append)
        ours.append(outcome.result["seconds"] / outcome.result["steps"])
        eager.append(eager_nodes(task, steps=16) / 16)
    name = f"a step of {NODES} nodes of mlp, 3 layers"
    return row(name, eager, ours, "200x", note="; ".join(told(events)), accuracies=[accuracy(outcome)])


def many_nodes(fields: dict[str, Any], repeats: int) -> dict[str, Any]:  # noqa: ARG001
    """So many nodes that each has a few dozen samples."""
    settings = {"model": "mlp", "hidden": [], "workers": min(MANY, (fields["limit"] or MANY * 58) // 10)}
    settings |= {"batch_size": 8, "sync_every": 4, "epochs": 10, "lr_scaling": "none", "lr": 0.5, "log_every": 20}
    task = prepare(Resolved.of(Experiment(**fields | settings)))
    events: list[Event] = []
    outcome = train_replicas(task, Stopwatch(), events.append)
    ours = [outcome.result["seconds"] / outcome.result["steps"]]
    name = f"a step of {task.workers} nodes of mlp, 1 layer"
    return row(name, [], ours, "it learns", note="; ".join(told(events)), accuracies=[accuracy(outcome)])


def eager_epochs(task: Task, shards: Sequence[Any], epochs: int) -> float:
    """Train networks one after another by the usual loop; return the seconds after a warm-up."""
    x, y = data(task)
    size = task.experiment.training.batch_size
    total = 0.0
    with set_matmul_precision(task.experiment.training.precision):
        for shard in shards:
            step = stepper(task)
            for rows in torch.from_numpy(shard[: 5 * size]).to(x.device).split(size):
                step(x[rows], y[rows])
            began = now(x.device)
            for epoch in range(epochs):
                for rows in order(shard, 0, epoch, 0).to(x.device).split(size):
                    step(x[rows], y[rows])
            total += now(x.device) - began
    return total


def eager_nodes(task: Task, steps: int) -> float:
    """Let all nodes step one after another, and average at the end."""
    x, y = data(task)
    size = task.experiment.training.batch_size
    with set_matmul_precision(task.experiment.training.precision):
        steppers = [stepper(task) for _ in range(task.workers)]
        rows = torch.randint(len(x), (size,), device=x.device)
        steppers[0](x[rows], y[rows])
        began = now(x.device)
        for _ in range(steps):
            for step in steppers:
                rows = torch.randint(len(x), (size,), device=x.device)
                step(x[rows], y[rows])
        with torch.no_grad():
            for tensors in zip(*(step.parameters for step in steppers), strict=True):  # type: ignore[attr-defined]
                mean = torch.stack(tensors).mean(0)
                for tensor in tensors:
                    tensor.copy_(mean)
        return now(x.device) - began


def stepper(task: Task) -> Callable[[torch.Tensor, torch.Tensor], None]:
    network = make_network(task).to(task.experiment.machine.device)
    training = task.experiment.training
    optimizer = torch.optim.SGD(network.parameters(), lr=training.lr or 0.05, momentum=training.momentum)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        with autocast(training.precision, x.device.type):
            loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()

    step.parameters = list(network.parameters())  # type: ignore[attr-defined]
    return step


def data(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    train = task.splits.train
    assert isinstance(train, Tensors)
    return train.x, train.y


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def seconds_of(outcomes: Sequence[Outcome | TenfoldError]) -> float:
    failed = [outcome for outcome in outcomes if isinstance(outcome, TenfoldError)]
    if failed:
        raise failed[0]
    return max(outcome.result["seconds"] for outcome in outcomes if isinstance(outcome, Outcome))


def told(events: Sequence[Event]) -> set[str]:
    return {event.text for event in events if isinstance(event, Note | Warned)}


def accuracy(outcome: Outcome) -> float:
    return float(outcome.result["metrics"]["accuracy"])


def row(name: str, eager: list[float], ours: list[float], goal: str, **more: Any) -> dict[str, Any]:
    ratios = [item / other for item, other in zip(eager, ours, strict=False)]
    return {"what": name, "eager": eager, "tenfold": ours, "ratios": ratios, "goal": goal, **more}


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("what", "eager", "Tenfold", "ratio, each time", "goal", "test accuracy")
    for row in rows:
        table.add_row(
            row["what"],
            ", ".join(f"{value:.4g} s" for value in row["eager"]),
            ", ".join(f"{value:.4g} s" for value in row["tenfold"]),
            ", ".join(f"{value:.1f}x" for value in row["ratios"]),
            row["goal"],
            ", ".join(f"{value:.2%}" for value in row.get("accuracies", [])),
        )
    Console(width=140).print(table)


PARTS = {
    "lenet": lenet,
    "cnn": partial(folds, "cnn", {"model": "cnn"}, "15x"),
    "cnn-bf16": partial(folds, "cnn, bf16", {"model": "cnn", "precision": "bf16"}, "15x"),
    "cnn-compiled": partial(folds, "cnn, compiled", {"model": "cnn", "precision": "bf16", "compile": True}, "15x"),
    "mlp": partial(folds, "mlp, 3 layers", MLP, "70x"),
    "nodes": nodes,
    "many": many_nodes,
}


if __name__ == "__main__":
    main()
