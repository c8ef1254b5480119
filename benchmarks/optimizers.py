"""What a step costs with each optimizer, beside a step of SGD: one thread, batch 64, interleaved, medians.

    python benchmarks/optimizers.py --json optimizers.json

Every optimizer has a network of its own, and they take turns, so that all have the same share of a busy machine. Times
are CPU times of the thread: a step is forward, backward and update.
"""

import statistics
from time import thread_time

import torch
from support.options import make_parser, write_json
from torch import nn

from tenfold.common.catalog import MODELS
from tenfold.experiment import Training
from tenfold.training import Replica

GOALS = {"lenet5": 1.2, "cnn": 1.15}
STEPS = {"lenet5": 300, "cnn": 20, "mlp": 300, "wide mlp": 60}
WIDE = [512, 512]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "muon", "adamw"])
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for model, steps in STEPS.items():
        found[model] = measure(model, arguments.optimizers, arguments.batch_size, steps)
        for name, (step, update) in found[model].items():
            ratio = step / found[model][arguments.optimizers[0]][0]
            goal = f" (goal: at most {GOALS[model]})" if name == "muon" and model in GOALS else ""
            print(f"{model:<9}{name:<8}{step * 1e3:8.2f} ms a step, update {update * 1e3:6.2f} ms{ratio:7.2f} x{goal}")
    write_json(arguments.json, found)


def measure(model: str, optimizers: list[str], batch_size: int, steps: int) -> dict[str, tuple[float, float]]:
    """Return for each optimizer the median seconds of a step and of its update."""
    x, y = torch.randn(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))
    replicas = {name: replica(model, name) for name in optimizers}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in optimizers}
    for _ in range(steps):
        for name, one in replicas.items():
            began = thread_time()
            one.backward(x, y)
            middle = thread_time()
            one.optimizer.step()
            times[name].append((thread_time() - began, thread_time() - middle))
    return {
        name: (statistics.median(step for step, _ in one), statistics.median(update for _, update in one))
        for name, one in times.items()
    }


def replica(model: str, optimizer: str) -> Replica:
    torch.manual_seed(0)
    made = MODELS["mlp"]((1, 28, 28), 10, hidden=WIDE) if model == "wide mlp" else MODELS[model]((1, 28, 28), 10)
    network = made.to(memory_format=torch.channels_last)
    return Replica(network, Training(optimizer=optimizer), nn.functional.cross_entropy, steps_per_epoch=10**6)


if __name__ == "__main__":
    main()
