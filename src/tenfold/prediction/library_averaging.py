"""Measure averaging by other transports of this machine: gloo on loopback, and MPI."""

import importlib.util
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from tenfold.errors import WorkerLost
from tenfold.launchers import find_mpirun
from tenfold.prediction.measurements import Averaging
from tenfold.prediction.probes import ReportProgress
from tenfold.workers.pool import WorkerPool, attach_to_parent

Medians = dict[int, float]
"""Median seconds of an all-reduce, by the bytes of one worker's weights."""

SIZES = {1 << 18: 15, 1 << 22: 7, 1 << 25: 3}
"""Bytes of weights, and the number of timed calls after one untimed call."""
WAIT_SECONDS = 30.0
"""Time limit in seconds for one number of workers."""


def measure_library_averaging(counts: Sequence[int], report: ReportProgress) -> list[Averaging]:
    """Measure exact rounds with the installed libraries; a library that fails is reported and omitted."""
    transports: dict[Any, Callable[[int], Medians]] = {}
    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        transports["gloo"] = _gloo
    if mpirun() is not None:
        transports["mpi"] = _mpi
    entries = []
    for transport, measure in transports.items():
        for n in counts:
            report(f"rounds of {n} workers by {transport}")
            try:
                seconds = measure(n)
            except (OSError, RuntimeError, ValueError, WorkerLost, subprocess.SubprocessError) as error:
                report(f"{transport} does not work here and is left out: {_last_error_line(error)}")
                break
            entries.append(Averaging.of(seconds, transport=transport, workers=n, kind="group", fan=n))
    return entries


def mpirun() -> str | None:
    """Return the path of mpirun, if mpi4py is installed as well."""
    return find_mpirun() if importlib.util.find_spec("mpi4py") else None


def time_calls(
    sizes: dict[int, int], average: Callable[[torch.Tensor], object], barrier: Callable[[], object]
) -> Medians:
    """Return the median seconds of an all-reduce for each size, as measured by this worker."""
    seconds_by_size = {}
    for nbytes, calls in sizes.items():
        buffer = torch.ones(nbytes // 4)
        seconds = []
        for _ in range(1 + calls):
            buffer.fill_(1.0)
            barrier()
            started = perf_counter()
            average(buffer)
            seconds.append(perf_counter() - started)
        seconds_by_size[nbytes] = statistics.median(seconds[1:])
    return seconds_by_size


def gloo_worker(
    rank: int, connection: Connection, lifeline: Connection, floats: Any, folder: str, n: int, sizes: dict[int, int]
) -> None:
    """Run one of `n` workers that average with gloo, and send the measured times."""
    attach_to_parent(rank, lifeline, floats)
    torch.set_num_threads(1)
    distributed = torch.distributed
    try:
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/gloo",
            rank=rank,
            world_size=n,
            timeout=timedelta(seconds=WAIT_SECONDS),
        )
        message: Any = time_calls(sizes, distributed.all_reduce, distributed.barrier)
        distributed.destroy_process_group()
    except Exception:
        message = traceback.format_exc()
    connection.send_bytes(pickle.dumps(message))
    connection.recv_bytes()


def _gloo(n: int) -> Medians:
    with tempfile.TemporaryDirectory() as folder:
        crew = WorkerPool(n, gloo_worker, (folder, n, SIZES))
        heard: dict[int, Medians] = {}
        try:
            for rank, message in crew.messages():
                if isinstance(message, str):
                    raise RuntimeError(message)
                heard[rank] = message
                if len(heard) == n:
                    break
        finally:
            for rank in range(n):
                crew.send(rank, None)
            crew.join()
    return _slowest(list(heard.values()))


def _mpi(n: int) -> Medians:
    flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    command = [str(mpirun()), *flags, "-n", str(n), sys.executable, "-P", "-m", __name__]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(str(Path(place).resolve()) for place in sys.path),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True)
    if not done.stdout.strip():
        raise RuntimeError(done.stderr.strip() or "mpirun printed no result")
    return {int(nbytes): seconds for nbytes, seconds in json.loads(done.stdout.splitlines()[-1]).items()}


def mpi_worker() -> None:
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    seconds_by_size = time_calls(SIZES, lambda buffer: world.Allreduce(MPI.IN_PLACE, buffer.numpy()), world.Barrier)
    slowest = np.array(list(seconds_by_size.values()))
    world.Allreduce(MPI.IN_PLACE, slowest, op=MPI.MAX)
    if world.Get_rank() == 0:
        print(json.dumps(dict(zip(seconds_by_size, slowest.tolist(), strict=True))))


def _last_error_line(error: Exception) -> str:
    """Return the last non-empty line that a program wrote to stderr, or the error itself."""
    said = getattr(error, "stderr", None) or str(error)
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next((line for line in lines if any(map(str.isalnum, line))), type(error).__name__)


def _slowest(by_worker: Sequence[Medians]) -> Medians:
    return {nbytes: max(item[nbytes] for item in by_worker) for nbytes in by_worker[0]}


if __name__ == "__main__":
    mpi_worker()
