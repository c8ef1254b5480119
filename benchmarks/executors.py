"""Times many short runs of mlp on digits on executors, against the local pool, and kills nodes under a comparison.

    pip install 'tenfold[ray,dask]'
    python benchmarks/executors.py --json executors.json

- in turn: tenfold.compare on this machine, one run after another, with one thread
- processes: the same runs as jobs of the local pool, on all cores, by which the others are measured
- dask, ray: the same. Cold includes the start of the executor and of its workers (Ray: about 6 s on an idle machine);
  warm is the second comparison with the same executor. Goal for Ray: at most 1.3x the local pool, both warm
- overhead: what a job takes beyond its training, with one job at a time on a warm executor, against a run in turn. Goal
  for Ray: at most 0.15 s
- load: the machine's, of the last minute: other programs disturb all of this
- killed nodes (`--kill`): jobs on a Ray of several nodes, one of which is killed every few seconds and replaced
"""

import os
import statistics
import tempfile
import time
from concurrent.futures import Executor
from typing import Any

from support.options import make_parser, write_json

import tenfold
from tenfold.registry import EXECUTORS
from tenfold.runs.events import JobsChanged

RUN: dict[str, Any] = {"model": "mlp", "data": "digits", "epochs": 1, "threads": 1}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=200, help="runs of a comparison")
    parser.add_argument("--on", nargs="*", default=["dask", "ray"], help="the executors")
    parser.add_argument("--kill", type=int, default=0, help="jobs of the comparison under which nodes are killed")
    parser.add_argument("--kill-every", type=float, default=10.0, metavar="SECONDS")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    if arguments.runs:
        compare_once(2)  # imports, threads
        base = found["in turn"] = {"seconds": compare_once(arguments.runs)}
        print(f"in turn     {base['seconds']:6.2f} s, {1e3 * base['seconds'] / arguments.runs:.0f} ms a run")
        for name in ("processes", *(name for name in arguments.on if name != "processes")):
            found[name] = measure(name, arguments.runs, base["seconds"], found.get("processes", {}).get("warm"))
    if arguments.kill:
        found["killed nodes"] = kill_nodes(arguments.kill, arguments.kill_every)
    write_json(arguments.json, found)


def compare_once(count: int, on: Any = "local") -> float:
    """Return the seconds of a comparison of many seeds in a new store."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = tenfold.compare(**RUN, seed=list(range(count)), on=on, runs=folder, progress=False)
        seconds = time.perf_counter() - began
    assert len(done.runs) == count, done.failed
    return seconds


def measure(name: str, count: int, base: float, pool: float | None) -> dict[str, float]:
    """Time a comparison on a cold and on a warm executor, and single jobs; `pool` is the local pool's when warm."""
    began = time.perf_counter()
    executor: Executor = EXECUTORS[name](1)
    start = time.perf_counter() - began
    cold = start + compare_once(count, executor)
    warm = compare_once(count, executor)
    alone = statistics.median(compare_once(1, executor) for _ in range(9))
    here = statistics.median(compare_once(1) for _ in range(9))
    executor.shutdown()
    of_pool = f", {warm / pool:.2f}x the local pool" if pool is not None else ""
    load = os.getloadavg()[0]
    print(
        f"{name:<11} {cold:6.2f} s cold ({cold / base:.2f}x in turn; start {start:.1f} s), {warm:.2f} s warm "
        f"({warm / base:.2f}x in turn{of_pool}), a job {1e3 * alone:.0f} ms alone, {1e3 * (alone - here):.0f} ms more "
        f"than a run here; load {load:.1f}"
    )
    return {"start": start, "cold": cold, "warm": warm, "job": alone, "run": here, "load": load}


def kill_nodes(jobs: int, every: float) -> dict[str, Any]:
    """Run jobs on a Ray with three nodes, one of which is killed every few seconds; count the rows."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    killed, since = 0, time.monotonic()

    def kill(event: object) -> None:
        nonlocal killed, since
        if isinstance(event, JobsChanged) and time.monotonic() - since > every:
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1))
            killed, since = killed + 1, time.monotonic()

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        fields = RUN | {"epochs": 100}
        done = tenfold.compare(**fields, seed=list(range(jobs)), on="ray", runs=folder, listen=kill)
        seconds = time.perf_counter() - began
        rows = [run.experiment.training.seed for run in tenfold.list_runs(runs=folder)]
        resumed = sum(any(getattr(event, "resumed", False) for event in run.events()) for run in done.runs)
    ray.shutdown()
    cluster.shutdown()
    print(
        f"killed nodes: {jobs} jobs, {killed} nodes killed, {len(set(rows))} rows, {len(rows) - len(set(rows))} twice, "
        f"{len(done.failed)} failed, {resumed} continued from a checkpoint, {seconds:.0f} s"
    )
    return {"jobs": jobs, "killed": killed, "rows": len(set(rows)), "twice": len(rows) - len(set(rows))}


if __name__ == "__main__":
    main()
