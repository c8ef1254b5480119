"""Times rounds and training between hosts on a slow network, and sets them against what the costs say.

    python benchmarks/launched.py --json launched.json

Hosts are network namespaces of this machine (see support/shaped_network.py), each with one rank under torchrun, which
talk by gloo through Tenfold's transports. First single rounds take turns: butterfly, hopping ring and gloo's
all_reduce. A round lasts from when the last rank began it until the last was done. Then a small network is trained, a
few steps each, by all-reduce, ring and butterfly. All hosts share this machine's cores, so a step rests for most of its
time, as if it were computed on cores of its own; how long it takes is measured in the same launch, by training without
rounds.

Times are predicted twice by the cost model (`Cluster`), with the bandwidth that headers leave: with a latency of two
delays, which is what ping shows, and with that at which one number really travels between two ranks, as a calibration
would find it. Nothing is fitted to what is compared. Needs root, for the namespaces.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from support.options import make_parser, write_json
from support.shaped_network import Hosts, come_first, obstacle

import tenfold
from tenfold.cluster import Cluster
from tenfold.engines.prepare import prepare
from tenfold.launchers import Host, detect_world, torchrun
from tenfold.machine import cores
from tenfold.mixing import STRATEGIES
from tenfold.prediction.profile import Profile
from tenfold.prediction.task_prediction import predict_from_profile
from tenfold.transport.meeting import join
from tenfold.workers.task import Resolved

SIZES = {"0.25 MB": 61_706, "4.8 MB": 1_200_000}
ROUNDS = ("allreduce", "butterfly", "hopping-ring")
TRAINED = [(strategy, every) for strategy in ("allreduce", "ring", "butterfly") for every in (1, 16)]
BATCH, FEATURES, REST = 64, 64, 0.01
TOLERANCES = {"round": 0.15, "training": 0.10}
WHY = """\
Why a message costs two delays: gloo sends nothing before the receiver has said that it is ready. Its ring all-reduce
asks for the next part while one is on its way, which hides some of that.
"""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s of each host, in each direction")
    parser.add_argument("--delay", type=float, default=5.0, help="ms from host to host")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=64, help="of each rank in a training")
    parser.add_argument("--rank", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        be_a_rank(options.rank, options.repeats, options.steps)
        return
    if problem := obstacle():
        print(f"skipped: {problem}")
        return
    comes_first = come_first()
    hosts = Hosts(options.hosts, bits_per_second=options.rate * 1e6, delay=options.delay / 1e3)
    measured = measure(hosts, options)
    rows = rounds(hosts, measured) + trainings(hosts, measured, options.steps)
    show(hosts, rows, measured)
    if not comes_first:
        print(f"The hosts shared {cores.budget()} cores with all else that ran here: what delays one delays its round.")
    content = {"network": hosts.about, "torch": torch.__version__, "measured": measured, "rows": rows}
    write_json(options.json, content)


def measure(hosts: Hosts, options: argparse.Namespace) -> dict[str, Any]:
    """Start a rank on every host, and return what rank 0 wrote down."""
    with tempfile.TemporaryDirectory() as folder, hosts:
        launchers = []
        job = [__file__, "--rank", folder, "--repeats", str(options.repeats), "--steps", str(options.steps)]
        everywhere = torchrun(list(map(Host, hosts.addresses)), job, name="bench", python=sys.executable)
        for number, (_, command) in enumerate(everywhere):
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            with Path(folder, f"host{number}.txt").open("w") as said:
                launchers.append(hosts.start(number, command, env=environment, stdout=said, stderr=subprocess.STDOUT))
        codes = [launcher.wait() for launcher in launchers]
        if any(codes):
            sys.exit("\n".join(path.read_text() for path in sorted(Path(folder).glob("host*.txt"))))
        return dict(json.loads(Path(folder, "measured.json").read_text()))


def be_a_rank(folder: Path, repeats: int, steps: int) -> None:
    world = detect_world()
    assert world is not None
    torch.set_num_threads(1)
    network = join(world, "torch").network
    found: dict[str, dict[str, list[float]]] = {"rounds": {}, "trainings": {}}
    sizes = {"one number": 1} | SIZES
    transports = {size: join(world, "torch").transport(numel, share_memory=False) for size, numel in sizes.items()}
    for turn in range(repeats + 1):
        for size, transport in transports.items():
            for name in ROUNDS:
                round_ = STRATEGIES[name]().round(turn, world.size)
                transport.buffer.normal_()
                network.barrier()
                began = perf_counter()
                transport.mix(round_)
                both = network.all_gather((began, perf_counter()))  # of one clock: the hosts are one machine
                if turn:
                    seconds = max(end for _, end in both) - max(start for start, _ in both)
                    found["rounds"].setdefault(f"{name} {size}", []).append(seconds)
    for _ in range(repeats):
        for strategy, every in [("none", 1), *TRAINED]:
            run = tenfold.train(
                experiment(strategy, every, steps, world.size), runs=folder / "runs", listen=lambda _: None
            )
            found["trainings"].setdefault(f"{strategy} {every}", []).append(float(run.seconds or 0.0))
    if world.rank == 0:
        (folder / "measured.json").write_text(json.dumps(found))


class Restful(torch.nn.Sequential):
    """A small network that rests before each step's work."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(FEATURES, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10))

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            sleep(REST)
        return super().forward(x)


def experiment(strategy: str, every: int, steps: int, workers: int) -> tenfold.Experiment:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps * BATCH * workers, FEATURES, generator=generator)
    y = torch.randint(10, (len(x),), generator=generator)
    return tenfold.Experiment(
        model=Restful,
        data={"train": (x, y), "test": (x[:BATCH], y[:BATCH])},
        epochs=1,
        batch_size=BATCH,
        strategy=strategy,
        sync_every=every,
        workers=workers,
        threads=1,
        oversubscribe=True,
        transport="torch",
    )


def rounds(hosts: Hosts, measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Set the rounds against their costs: seconds, and how much shorter than an all-reduce."""
    workers = len(hosts.names)
    clusters = [Cluster.of(workers, link) for link in links(hosts, measured)]
    rows = []
    for size, numel in SIZES.items():
        for name in ROUNDS:
            round_ = STRATEGIES[name]().round(0, workers)
            predicted = [float(np.max(cluster.round_cost(workers)(round_, 4 * numel))) for cluster in clusters]
            rows.append(row("round", f"{name}, {size}", measured["rounds"][f"{name} {size}"], predicted))
        whole = rows[-len(ROUNDS)]
        for item in rows[-len(ROUNDS) :]:
            item["ratio"] = item["median"] / whole["median"]
            item["predicted_ratios"] = [
                part / all_ for part, all_ in zip(item["predicted"], whole["predicted"], strict=True)
            ]
    return rows


def trainings(hosts: Hosts, measured: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """Set training times against the virtual clock, whose steps last as long as those without rounds."""
    workers = len(hosts.names)
    step = statistics.median(measured["trainings"]["none 1"]) / steps
    clusters = [Cluster.of(workers, link, step_seconds=step) for link in links(hosts, measured)]
    rows = []
    for strategy, every in TRAINED:
        task = prepare(Resolved.of(experiment(strategy, every, steps, workers).replace(transport="auto")))
        predicted = [predict_from_profile(task, Profile(made="", machine={}), cluster).seconds for cluster in clusters]
        name = f"{strategy}, every {every}"
        rows.append(row("training", name, measured["trainings"][f"{strategy} {every}"], predicted))
    return rows


def links(hosts: Hosts, measured: dict[str, Any]) -> list[dict[str, float]]:
    """Return the network with the latency that ping shows, and with the one that was measured between two ranks."""
    latencies = 2 * hosts.delay, statistics.median(measured["rounds"]["butterfly one number"])
    return [{"latency": latency, "bandwidth": hosts.bandwidth} for latency in latencies]


def row(kind: str, name: str, seconds: list[float], predicted: list[float]) -> dict[str, Any]:
    median = statistics.median(seconds)
    spread = [min(seconds), max(seconds)]
    return {
        "kind": kind,
        "name": name,
        "median": median,
        "range": spread,
        "predicted": predicted,
        "errors": [item / median - 1 for item in predicted],
    }


def show(hosts: Hosts, rows: list[dict[str, Any]], measured: dict[str, Any]) -> None:
    ways = "latency by ping", "latency measured"
    table = Table("what", "ms", "range", *ways, "of all-reduce", *ways, title=hosts.about)
    for item in rows:
        low, high = (f"{1e3 * seconds:,.1f}" for seconds in item["range"])
        cells = [f"{item['kind']} {item['name']}", f"{1e3 * item['median']:,.1f}", f"{low}-{high}"]
        cells += [
            f"{1e3 * each:,.1f} ({error:+.0%})" for each, error in zip(item["predicted"], item["errors"], strict=True)
        ]
        if item.get("ratio", 1.0) != 1.0:
            cells.append(f"{item['ratio']:.2f}")
            cells += [f"{each:.2f} ({each / item['ratio'] - 1:+.0%})" for each in item["predicted_ratios"]]
        table.add_row(*cells)
    Console(width=150).print(table)
    for name in ROUNDS:
        seconds = statistics.median(measured["rounds"][f"{name} one number"])
        print(f"a round of one number, {name}: {1e3 * seconds:.1f} ms = {seconds / hosts.delay:.1f} delays")
    ratios = [row for row in rows if row.get("ratio", 1.0) != 1.0]
    for at, way in enumerate(ways):
        alike = near([ratio["predicted_ratios"][at] / ratio["ratio"] - 1 for ratio in ratios], TOLERANCES["round"])
        print(f"{way}: ratios to all-reduce {alike}")
        for kind, tolerance in TOLERANCES.items():
            errors = [row["errors"][at] for row in rows if row["kind"] == kind]
            print(f"{way}: seconds of a {kind} {near(errors, tolerance)}")
    print(WHY, end="")


def near(errors: list[float], tolerance: float) -> str:
    return f"{sum(abs(error) <= tolerance for error in errors)} of {len(errors)} within {tolerance:.0%}"


if __name__ == "__main__":
    main()
