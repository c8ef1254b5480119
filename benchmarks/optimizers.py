"""What a step costs with each optimizer, beside a step of SGD: one thread, interleaved, medians and quartiles.

    python benchmarks/optimizers.py --json optimizers.json
    python benchmarks/optimizers.py --models "three of 1024" --optimizers sgd ng-sgd --batch-size 512

Every optimizer has a network of its own, and they take turns, so that all have the same share of a busy machine. Times
are CPU times of the thread: a step is forward, backward and update. A time is the mean of four steps, because some
optimizers (ng-sgd) do more in every fourth; the first twelve steps are not counted.
"""

import statistics
from collections.abc import Sequence
from time import thread_time
from typing import Any

import torch
from support.options import make_parser, write_json
from torch import nn

from tenfold.experiment import Training
from tenfold.registry import MODELS
from tenfold.training import Replica

GOALS = {("lenet5", "muon"): 1.2, ("cnn", "muon"): 1.15, ("three of 1024", "ng-sgd"): 1.5}
STEPS = {"lenet5": 300, "cnn": 32, "mlp": 300, "wide mlp": 60, "three of 1024": 60}
WARMUP, TOGETHER = 12, 4
HIDDEN = {"wide mlp": [512, 512], "three of 1024": [1024, 1024, 1024]}
Times = dict[str, list[tuple[float, float]]]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "muon", "adamw", "ng-sgd"])
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for model in arguments.models:
        times = measure(model, arguments.optimizers, arguments.batch_size, STEPS[model])
        found[model] = {name: describe(times, name, arguments.optimizers[0]) for name in times}
        for name, row in found[model].items():
            goal = f" (goal: at most {GOALS[model, name]})" if (model, name) in GOALS else ""
            low, middle, high = row["ratio"]
            print(
                f"{model:<14}{name:<8}{row['step'] * 1e3:8.2f} ms a step, update {row['update'] * 1e3:6.2f} ms"
                f"{middle:7.2f} x ({low:.2f} to {high:.2f}){goal}"
            )
    write_json(arguments.json, found)


def measure(model: str, optimizers: list[str], batch_size: int, steps: int) -> Times:
    """Return for each optimizer the seconds of a step and of its update, several times."""
    x, y = torch.randn(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))
    replicas = {name: replica(model, name) for name in optimizers}
    times: Times = {name: [] for name in optimizers}
    for _ in range(WARMUP + steps):
        for name, item in replicas.items():
            began = thread_time()
            item.backward(x, y)
            middle = thread_time()
            item.optimizer.step()
            times[name].append((thread_time() - began, thread_time() - middle))
    starts = range(WARMUP, WARMUP + steps, TOGETHER)
    return {name: [mean_times(item[start : start + TOGETHER]) for start in starts] for name, item in times.items()}


def mean_times(steps: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.mean(step for step, _ in steps), statistics.mean(update for _, update in steps)


def describe(times: Times, name: str, first: str) -> dict[str, Any]:
    """Return the medians of one optimizer, and the quartiles of the ratio of its steps to the first optimizer's."""
    ratios = [item / other for (item, _), (other, _) in zip(times[name], times[first], strict=True)]
    return {
        "step": statistics.median(step for step, _ in times[name]),
        "update": statistics.median(update for _, update in times[name]),
        "ratio": statistics.quantiles(ratios, n=4),
    }


def replica(model: str, optimizer: str) -> Replica:
    torch.manual_seed(0)
    hidden = {"hidden": HIDDEN[model]} if model in HIDDEN else {}
    made = MODELS["mlp" if hidden else model]((1, 28, 28), 10, **hidden)
    network = made.to(memory_format=torch.channels_last)
    return Replica(network, Training(optimizer=optimizer), nn.functional.cross_entropy, steps_per_epoch=10**6)


if __name__ == "__main__":
    main()
