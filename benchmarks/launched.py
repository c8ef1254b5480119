"""Times rounds and training between hosts on a slow network, and sets them against what the costs say.

    python benchmarks/launched.py --json launched.json

Hosts are network namespaces of this machine (see shaped.py), each with one rank under torchrun, which talk by gloo
through Tenfold's transports. First single rounds take turns: butterfly, hopping ring and gloo's all_reduce. A round
lasts from when the last rank began it until the last was done. Then a small network is trained, a few steps each, by
all-reduce, ring and butterfly. A step's own time is measured in the same launch by training without rounds.

Times are predicted twice by the cost model (`Cluster`): for the network as it was asked for, headers taken off, and
with the latency at which one number really travels between two ranks, as a calibration would find it. Nothing is fitted
to what is compared. Needs root, for the namespaces.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import shaped
import torch
from rich.console import Console
from rich.table import Table

import tenfold
from tenfold.cluster import Cluster
from tenfold.cluster.profile import Profile
from tenfold.engines.forecast import forecast
from tenfold.engines.prepare import prepare
from tenfold.machine import cores
from tenfold.machine.launcher import recognise
from tenfold.mixing import STRATEGIES
from tenfold.transport.world import join

SIZES = {"0.25 MB": 61_706, "4.8 MB": 1_200_000}
ROUNDS = ("allreduce", "butterfly", "hopping-ring")
TRAINED = [(strategy, every) for strategy in ("allreduce", "ring", "butterfly") for every in (1, 16)]
BATCH, FEATURES = 64, 64
TOLERANCE = 0.15
WHY = """\
Why one number takes longer than the delay: gloo sends nothing before the receiver has said that it is ready, so a
message costs two delays. Its ring all-reduce asks for the next part while one is on its way, which hides some of that.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s of each host, in each direction")
    parser.add_argument("--delay", type=float, default=5.0, help="ms from host to host")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=64, help="of each rank in a training")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rank", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        be_a_rank(options.rank, options.repeats, options.steps)
        return
    if problem := shaped.obstacle():
        print(f"skipped: {problem}")
        return
    hosts = shaped.Hosts(options.hosts, bits_per_second=options.rate * 1e6, delay=options.delay / 1e3)
    measured = measure(hosts, options)
    rows = rounds(hosts, measured) + trainings(hosts, measured, options.steps)
    show(hosts, rows, measured)
    if options.json:
        content = {"network": hosts.about, "torch": torch.__version__, "measured": measured, "rows": rows}
        options.json.write_text(json.dumps(content, indent=2) + "\n")


def measure(hosts: shaped.Hosts, options: argparse.Namespace) -> dict[str, Any]:
    """Start a rank on every host, and return what rank 0 wrote down."""
    with tempfile.TemporaryDirectory() as folder, hosts:
        launchers = []
        for number, address in enumerate(hosts.addresses):
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts.names))]
            command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts.addresses[0]}:29500"]
            command += ["--rdzv-conf", f"is_host={int(number == 0)}", "--rdzv-id", "bench", "--local-addr", address]
            command += [__file__, "--rank", folder, "--repeats", str(options.repeats), "--steps", str(options.steps)]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            with Path(folder, f"host{number}.txt").open("w") as said:
                launchers.append(hosts.start(number, command, env=environment, stdout=said, stderr=subprocess.STDOUT))
        codes = [launcher.wait() for launcher in launchers]
        if any(codes):
            sys.exit("\n".join(path.read_text() for path in sorted(Path(folder).glob("host*.txt"))))
        return dict(json.loads(Path(folder, "measured.json").read_text()))


def be_a_rank(folder: Path, repeats: int, steps: int) -> None:
    world = recognise()
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


def experiment(strategy: str, every: int, steps: int, workers: int) -> tenfold.Experiment:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps * BATCH * workers, FEATURES, generator=generator)
    y = torch.randint(10, (len(x),), generator=generator)
    return tenfold.Experiment(
        model="mlp",
        hidden=[256, 64],
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


def rounds(hosts: shaped.Hosts, measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Set the rounds against their costs: seconds, and how much shorter than an all-reduce."""
    workers = len(hosts.names)
    clusters = [Cluster.of(workers, link) for link in links(hosts, measured)]
    rows = []
    for size, numel in SIZES.items():
        for name in ROUNDS:
            round_ = STRATEGIES[name]().round(0, workers)
            predicted = [float(np.max(cluster.round_price(workers)(round_, 4 * numel))) for cluster in clusters]
            rows.append(row("round", f"{name}, {size}", measured["rounds"][f"{name} {size}"], predicted))
        whole = rows[-len(ROUNDS)]
        for one in rows[-len(ROUNDS) :]:
            one["ratio"] = one["median"] / whole["median"]
            one["predicted_ratios"] = [
                part / all_ for part, all_ in zip(one["predicted"], whole["predicted"], strict=True)
            ]
    return rows


def trainings(hosts: shaped.Hosts, measured: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """Set training times against the virtual clock, whose steps last as long as those without rounds."""
    workers = len(hosts.names)
    step = statistics.median(measured["trainings"]["none 1"]) / steps
    clusters = [Cluster.of(workers, link, step_seconds=step) for link in links(hosts, measured)]
    rows = []
    for strategy, every in TRAINED:
        task = prepare(experiment(strategy, every, steps, workers).replace(transport="auto"))
        predicted = [forecast(task, Profile(made="", machine={}), cluster).seconds for cluster in clusters]
        name = f"{strategy}, every {every}"
        rows.append(row("training", name, measured["trainings"][f"{strategy} {every}"], predicted))
    return rows


def links(hosts: shaped.Hosts, measured: dict[str, Any]) -> list[dict[str, float]]:
    """Return the network as it was asked for, and with the latency that was measured between two ranks."""
    latencies = hosts.delay, statistics.median(measured["rounds"]["butterfly one number"])
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
        "errors": [one / median - 1 for one in predicted],
    }


def show(hosts: shaped.Hosts, rows: list[dict[str, Any]], measured: dict[str, Any]) -> None:
    asked, found = "as asked", "latency measured"
    columns = "measured ms: median and range", f"predicted, {asked}", f"predicted, {found}"
    table = Table("what", *columns, "of all-reduce", asked, found, title=hosts.about)
    for one in rows:
        low, high = (f"{1e3 * seconds:,.1f}" for seconds in one["range"])
        cells = [f"{one['kind']} {one['name']}", f"{1e3 * one['median']:,.1f} [{low}-{high}]"]
        cells += [f"{1e3 * each:,.1f} ({each / one['median'] - 1:+.0%})" for each in one["predicted"]]
        if one.get("ratio", 1.0) != 1.0:
            cells.append(f"{one['ratio']:.2f}")
            cells += [f"{each:.2f} ({each / one['ratio'] - 1:+.0%})" for each in one["predicted_ratios"]]
        table.add_row(*cells)
    Console(width=150).print(table)
    for name in ROUNDS:
        seconds = statistics.median(measured["rounds"][f"{name} one number"])
        print(f"a round of one number, {name}: {1e3 * seconds:.1f} ms = {seconds / hosts.delay:.1f} delays")
    ratios = [one for one in rows if one.get("ratio", 1.0) != 1.0]
    for at, how in enumerate((asked, found)):
        near = sum(abs(one["errors"][at]) <= TOLERANCE for one in rows)
        alike = sum(abs(one["predicted_ratios"][at] / one["ratio"] - 1) <= TOLERANCE for one in ratios)
        within = f"seconds {near} of {len(rows)}, ratios to all-reduce {alike} of {len(ratios)}"
        print(f"within {TOLERANCE:.0%}, {how}: {within}")
    print(WHY, end="")
    if cores.budget() <= len(hosts.names):
        print(
            f"The ranks shared {cores.budget()} cores, with all else that ran here: what delays one delays its round."
        )


if __name__ == "__main__":
    main()
