"""What it saves that workers with averaged gradients divide the orthogonalization of Muon: interleaved, medians.

    python benchmarks/divided_steps.py --workers 2 --json divided.json

Worker processes with one thread each take ten whole steps, ten divided ones, and so on, in shared memory. A step is
forward, backward, averaging and update; its wall time is the median over steps of the slowest worker's. CPU time
includes polling while a worker waits. On a busy machine only CPU times tell something.
"""

import statistics
from time import perf_counter, thread_time
from typing import Any

import torch
from support.gloo_ranks import run_ranks
from support.options import make_parser, write_json
from torch import nn

from tenfold.experiment import Parallel, Training
from tenfold.machine import cores
from tenfold.registry import MODELS
from tenfold.training import Replica, flat_size
from tenfold.training.flat_weights import exchange_size
from tenfold.workers.channels import SharedChannels
from tenfold.workers.rounds import SharedOrthogonalization, stacks_worth_sharing
from tenfold.workers.task import Mixing
from tenfold.workers.trainers import make_averaging_trainer

NETWORKS_AND_STEPS: dict[str, tuple[str, dict[str, Any], int]] = {
    "lenet5": ("lenet5", {}, 200),
    "mlp": ("mlp", {}, 300),
    "cnn": ("cnn", {}, 40),
    "mlp [512, 512]": ("mlp", {"hidden": [512, 512]}, 200),
    "mlp [1024] * 5": ("mlp", {"hidden": [1024] * 5}, 40),
}
STRETCH = 10
"""Steps of one kind in turn, of which the first does not count."""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", help="default: all cores that may be used")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS_AND_STEPS), choices=list(NETWORKS_AND_STEPS))
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    rows = []
    for workers in arguments.workers or [cores.budget()]:
        for network in arguments.networks:
            rows.append(measure(network, workers, arguments.batch_size))
            show(rows[-1])
    write_json(arguments.json, rows)


def measure(name: str, workers: int, batch_size: int) -> dict[str, Any]:
    model, strategy = network(name), Mixing.of(Parallel()).strategy
    shared = SharedChannels(workers, flat_size(model), strategy=strategy, gradient_numel=exchange_size(model))
    heard = run_ranks(workers, work, shared, name, batch_size)
    shared.close()
    wall, cpu = ({kind: max(item[which][kind] for item in heard) for kind in ("whole", "divided")} for which in (0, 1))
    return {"network": name, "workers": workers, "wall": wall, "cpu": cpu, "pays": heard[0][2]}


def work(rank: int, workers: int, shared: SharedChannels, name: str, batch_size: int) -> tuple[Any, Any, bool]:
    """Return the median wall and CPU times of both kinds of steps, and whether dividing them should pay."""
    channels = shared.open(rank)
    replica = Replica(
        network(name),
        Training(optimizer="muon"),
        nn.functional.cross_entropy,
        steps_per_epoch=10**6,
        vector=channels.transport.buffer,
    )
    trainer: Any = make_averaging_trainer(
        Mixing.of(Parallel(workers=workers, average="gradients")), replica, channels, [1.0] * workers
    )
    divided = SharedOrthogonalization(replica, replica.optimizer, channels.transport)  # type: ignore[arg-type]
    own = replica.optimizer.own
    torch.manual_seed(rank)
    x, y = torch.randn(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))
    wall: dict[str, list[float]] = {"whole": [], "divided": []}
    cpu: dict[str, list[float]] = {"whole": [], "divided": []}
    for _ in range(NETWORKS_AND_STEPS[name][2] // STRETCH):
        for kind, chosen in (("whole", None), ("divided", divided)):
            trainer.shared_orthogonalization, replica.optimizer.own = chosen, own if chosen else {}
            for step in range(STRETCH):
                began, began_cpu = perf_counter(), thread_time()
                trainer.train_step(x, y, [batch_size] * workers)
                if step:
                    wall[kind].append(perf_counter() - began)
                    cpu[kind].append(thread_time() - began_cpu)
    pays = bool(stacks_worth_sharing(replica.optimizer, workers))
    medians = [{kind: statistics.median(item[kind]) for kind in item} for item in (wall, cpu)]
    return medians[0], medians[1], pays


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind, options, _ = NETWORKS_AND_STEPS[name]
    return MODELS[kind]((1, 28, 28), 10, **options).to(memory_format=torch.channels_last)


def show(row: dict[str, Any]) -> None:
    texts = []
    for what in ("wall", "cpu"):
        whole, divided = row[what]["whole"], row[what]["divided"]
        texts.append(f"{what} {whole * 1e3:7.2f} ms whole {divided * 1e3:7.2f} ms divided {divided / whole:5.2f} x")
    kept = "divided" if row["pays"] else "whole"
    print(f"{row['network']:<15} {row['workers']:3} workers  {'   '.join(texts)}   (the rule: {kept})", flush=True)


if __name__ == "__main__":
    main()
