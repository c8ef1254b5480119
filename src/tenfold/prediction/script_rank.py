"""One rank of a script that is simulated: `python -m tenfold.prediction.script_rank FOLDER`.

It runs the script as `python script.py` would, after it has arranged that

- every process group is a `VirtualGroup`, whatever backend the script names;
- `torch.multiprocessing.spawn` runs the rank's part here, since the ranks exist already;
- the script's own code reads the virtual clock: `time.time`, `time.perf_counter`, `time.monotonic`;
- optimizer steps are counted, and end the script where only a few of them are wanted.

At the end it writes what it counted to its file in the folder.
"""

import ctypes
import functools
import json
import os
import resource
import runpy
import signal
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from tenfold.cluster.cluster import Cluster
from tenfold.common.files import write_atomically
from tenfold.errors import ExperimentError
from tenfold.prediction import SCRIPT_PLAN
from tenfold.prediction.script_clock import VirtualGroup, VirtualRank

CLOCKS = ("time", "perf_counter", "monotonic")
BACKEND = "tenfold_virtual"
PR_SET_PDEATHSIG = 1
PYTHON_OR_OURS = (sysconfig.get_paths()["stdlib"], str(Path(__file__).parents[1]), "<")
PACKAGES = ("site-packages", "dist-packages")


class Observer:
    """What happens in this rank while the script runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads((folder / SCRIPT_PLAN).read_text())
        self.number = int(os.environ["RANK"])
        self.rank: VirtualRank | None = None
        self.start_seconds = 0.0
        self.began: dict[str, float] = {}
        """By name, what each clock of Python showed when the virtual one began."""
        self.clocks = {name: getattr(time, name) for name in CLOCKS}
        self.clock_reads = 0
        self.step_ends: list[float] = []
        self.batches: int | None = None
        """The length of the DataLoader that the script iterates over."""
        self.steps_per_epoch: int | None = None

    def install(self) -> None:
        """Arrange everything before the script runs."""
        c10d.Backend.register_backend(BACKEND, self._make_group, extended_api=True, devices=["cpu"])
        original = c10d._new_process_group_helper

        @functools.wraps(original)
        def make_group(size: int, rank: int, ranks: Any, _backend: Any, *rest: Any, **options: Any) -> Any:
            options.pop("backend_options", None)
            return original(size, rank, ranks, BACKEND, *rest, **options)

        c10d._new_process_group_helper = make_group  # type: ignore[assignment]
        for name in ("spawn", "start_processes"):
            setattr(torch.multiprocessing, name, self._run_here)
        iterate = DataLoader.__iter__

        @functools.wraps(iterate)
        def noted(loader: Any) -> Any:
            self.batches = len(loader) if hasattr(loader.dataset, "__len__") else None
            return iterate(loader)

        DataLoader.__iter__ = noted  # type: ignore[method-assign]
        register_optimizer_step_post_hook(self._end_step)
        for name in CLOCKS:
            setattr(time, name, self._virtual_clock(name))

    def record(self) -> None:
        """Write what was counted to this rank's file."""
        if self.rank is None:
            return
        self.rank.leave()
        usage, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        record = self.rank.clock.record() | {
            "start": self.start_seconds,
            "step_ends": self.step_ends,
            "steps_per_epoch": self.steps_per_epoch,
            "clock_reads": self.clock_reads,
            "asleep": self.rank.asleep_seconds,
            "cpu": usage.ru_utime + usage.ru_stime,
            "children": children.ru_utime + children.ru_stime,
            "memory": usage.ru_maxrss * 1024,
        }
        write_atomically(self.folder / f"rank-{self.number}.json", json.dumps(record).encode())

    def _make_group(self, options: Any, _backend_options: Any = None) -> VirtualGroup:
        plan, world = self.plan, self.plan["workers"]
        numbers = list(options.global_ranks_in_group) or list(range(options.group_size))
        if len(numbers) > world or max(numbers) >= world:
            raise ExperimentError(f"the script makes a group of {len(numbers)} ranks, but {world} are simulated")
        if self.rank is None:
            self.start_seconds = time.process_time()
            cluster = Cluster(**plan["cluster"])
            self.began = {name: clock() for name, clock in self.clocks.items()}
            self.rank = VirtualRank(self.number, cluster, world, self.folder / "cores", plan["seed"])
        seconds = options.timeout.total_seconds() * (1 + world)  # ranks take turns on few cores
        return VirtualGroup(self.rank, options.store, options.group_rank, numbers, seconds)

    def _run_here(self, function: Callable[..., Any], args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        """Do what `torch.multiprocessing.spawn` would do in the process with this rank's number."""
        if nprocs != self.plan["workers"]:
            raise ExperimentError(
                f"the script starts {nprocs} ranks itself, but {self.plan['workers']} are simulated; let it start as "
                f"many, or simulate it with --workers {nprocs}"
            )
        function(self.number, *args)

    def _virtual_clock(self, name: str) -> Callable[[], float]:
        """Return a clock that shows virtual time to the script, and real time to Python and installed packages."""
        original: Callable[[], float] = self.clocks[name]
        users: dict[str, bool] = {}

        @functools.wraps(original)
        def read() -> float:
            if self.rank is None:
                return original()
            file = sys._getframe(1).f_code.co_filename
            if file not in users:
                users[file] = not file.startswith(PYTHON_OR_OURS) and not any(name in file for name in PACKAGES)
            if not users[file]:
                return original()
            self.clock_reads += 1
            return self.began[name] + self.rank.clock.advance()

        return read

    def _end_step(self, *_: Any) -> None:
        if self.rank is None:
            return
        self.step_ends.append(self.rank.clock.advance())
        if len(self.step_ends) == 1:
            self.steps_per_epoch = self.batches
        if len(self.step_ends) == self.plan["stop_after"]:
            self.record()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def main() -> None:
    """Run the script."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a rank ends with its parent, however that ends
    if os.getppid() == 1:  # which it has done already
        return
    observer = Observer(Path(sys.argv[1]))
    observer.install()
    script = observer.plan["script"]
    sys.argv = [script, *observer.plan["arguments"]]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    observer.record()


if __name__ == "__main__":
    main()
