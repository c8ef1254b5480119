"""Compares predicted with measured seconds of DDP scripts: five networks, on cores and over slow links.

    python benchmarks/script_simulation.py --json script_simulation.json

Real ranks run on the cores of this machine, and in network namespaces whose links `tc` slows down (needs root; left out
without). Of each such cluster the link is measured by all_reduce alone, of several sizes; then each network is trained
there and simulated with that link, in turns. Where ranks outnumber cores, the nodes of the simulation are slower. What
simulating costs is the processor time of all its ranks by that of their own computing.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, expm1, log
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from support.options import make_parser, write_json

from tenfold.api.simulate import simulate_script
from tenfold.cluster.cluster import Cluster
from tenfold.cluster.time_prediction import LEVEL

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from launching import rank_environment
from network_hosts import Hosts

SCRIPT = Path(__file__).parent / "support" / "ddp_script.py"
STEPS = {"LeNet-5": 200, "cnn": 60, "tabular MLP": 600, "LSTM": 200, "wide MLP": 60}
SIZES = (300_000, 15_000, 60_000, 150_000, 300_000, 1_000_000, 2_000_000)
"""Numbers of each all_reduce that measures a link; the first one only lets TCP learn what it carries."""
PACKETS = {"1gbit": 65_536, "100mbit": 8_192}
"""Bytes of the largest packets at a rate: what travels in about 0.5 ms."""


@dataclass
class Setting:
    """A cluster of real ranks."""

    name: str
    ranks: int
    hosts: Hosts | None = None
    fewer: int = 1
    """Divides the steps: slow links make them long."""

    def run(self, *arguments: str) -> list[float]:
        """Run the script on real ranks, and return what the slowest printed."""
        address = (self.hosts.addresses[0] if self.hosts else "127.0.0.1", 29_511)
        local = self.ranks if self.hosts is None else 1
        started = [
            subprocess.Popen(
                [*self._place(rank), sys.executable, str(SCRIPT), *arguments],
                env=rank_environment(rank, self.ranks, local, address),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(self.ranks)
        ]
        return slowest(line for process in started for line in process.communicate(timeout=300)[0].splitlines())

    def _place(self, rank: int) -> list[str]:
        """Return what goes before a command to run it where a rank belongs: a host has a core that others do not use.

        Where hosts outnumber cores, several have the same one.
        """
        if self.hosts is None:
            return []
        available = sorted(os.sched_getaffinity(0))
        return [*self.hosts.inside(rank), "taskset", "-c", str(available[rank % len(available)])]

    def cluster(self, cores: int) -> Cluster:
        """Measure the link, and return the cluster with it: latency and bandwidth fit all sizes of all_reduce."""
        seconds = np.array(self.run("all_reduce", *map(str, SIZES)))[1:]
        costs = [
            Cluster.of(self.ranks, {"latency": latency, "bandwidth": bandwidth}, adding=0).round_cost(self.ranks)
            for latency, bandwidth in ((1.0, 1e18), (0.0, 1.0))
        ]
        parts = np.array(
            [[cost.operation("all_reduce", range(self.ranks), 4 * size).max() for cost in costs] for size in SIZES[1:]]
        )
        fit = least_squares(lambda logs: np.log(parts @ np.exp(logs) / seconds), np.log([1e-4, 1e-8]))
        latency, per_byte = np.exp(fit.x)
        unit = {"name": "nodes", "speed": min(1.0, cores / self.ranks)}
        return Cluster.of(self.ranks, {"latency": latency, "bandwidth": 1 / per_byte}, adding=0, **unit)


def slowest(lines: Any) -> list[float]:
    """Return the largest of each number that the ranks printed."""
    numbers = [[float(word) for word in line.split()[1:]] for line in lines if line.startswith("SECONDS")]
    return [max(column) for column in zip(*numbers, strict=True)]


@contextmanager
def settings(cores: int) -> Iterator[list[Setting]]:
    """Make the clusters."""
    found = [Setting(f"2 ranks on {cores} cores", 2)]
    made: list[Hosts] = []
    try:
        for number, (ranks, rate, fewer) in enumerate(
            [(2, "1gbit", 1), (2, "100mbit", 3), (4, "1gbit", 2), (4, "100mbit", 6)]
        ):
            hosts = Hosts(ranks, number)
            made.append(hosts)
            if problem := hosts.make() or hosts.limit(rate, PACKETS[rate]):
                print(f"no slow links: {problem}")
                break
            found.append(Setting(f"{ranks} ranks, {rate}", ranks, hosts, fewer))
        yield found
    finally:
        for hosts in made:
            hosts.remove()


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="turns of measuring and simulating")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps")
    parser.add_argument("--only", default="", help="settings whose name contains this")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    rows = []
    with tempfile.TemporaryDirectory() as runs, settings(cores) as clusters:
        print(f"{'':<20}{'':<14}{'measured, s':>26}{'predicted, s':>26}{'error':>8}", flush=True)
        for setting in clusters:
            if options.only not in setting.name:
                continue
            cluster = setting.cluster(cores)
            link = cluster.groups[0].link
            print(f"{setting.name}: {1e6 * link.latency:.0f} us, {link.bandwidth / 1e6:.3g} MB/s", flush=True)
            steps = {model: max(10, round(options.scale * count / setting.fewer)) for model, count in STEPS.items()}
            rows += compare(setting, cluster, steps, options.repeats, Path(runs))
    errors = [abs(row["error"]) for row in rows]
    print(f"\nerror: median {median(errors):.1%}, largest {max(errors):.1%} of {len(errors)}")
    print(f"above 15%: {sum(error > 0.15 for error in errors)}")
    print(
        f"model error with which intervals of {LEVEL:.0%} hold {LEVEL:.0%} of the measured times: {covering(rows):.3f}"
    )
    print(f"cost: median {median(row['cost'] for row in rows):.2f}, most {max(row['cost'] for row in rows):.2f}")
    write_json(options.json, {"cores": cores, "rows": rows})


def covering(rows: list[dict[str, Any]]) -> float:
    """Return the least model error with which this share of the medians lies in the predicted intervals."""
    logs = sorted(abs(log(median(row["predicted"]) / median(row["measured"]))) for row in rows)
    return expm1(logs[ceil(LEVEL * len(logs)) - 1] / NormalDist().inv_cdf((1 + LEVEL) / 2))


def compare(
    setting: Setting, cluster: Cluster, steps: dict[str, int], repeats: int, runs: Path
) -> list[dict[str, Any]]:
    """Measure and simulate all models in turns."""
    arguments = [word for model, count in steps.items() for word in (model, str(count))]
    measured, predicted, costs = [], [], []
    for _ in range(repeats):
        measured.append(setting.run(*arguments))
        lines: list[str] = []
        done = simulate_script(
            SCRIPT,
            *arguments,
            workers=setting.ranks,
            cluster=cluster.model_dump(mode="json", exclude_none=True),
            runs=runs,
            say=lambda _, line, lines=lines: lines.append(line),
        )
        predicted.append(slowest(lines))
        computed = sum(rank["compute"] for rank in done.result["ranks"]) * cluster.groups[0].speed
        costs.append(done.result["cpu_seconds"] / computed)
    rows = []
    for model, *seconds in zip(steps, zip(*measured, strict=True), zip(*predicted, strict=True), strict=True):
        real, virtual = map(median, seconds)
        cells = [f"{median(values):.3f} [{min(values):.3f}-{max(values):.3f}]" for values in seconds]
        print(f"{setting.name:<20}{model:<14}{cells[0]:>26}{cells[1]:>26}{virtual / real - 1:>8.1%}", flush=True)
        rows.append(
            {
                "setting": setting.name,
                "model": model,
                "steps": steps[model],
                "measured": seconds[0],
                "predicted": seconds[1],
                "error": virtual / real - 1,
                "cost": median(costs),
            }
        )
    print(f"{setting.name:<20}cost {median(costs):.2f}", flush=True)
    return rows


if __name__ == "__main__":
    main()
