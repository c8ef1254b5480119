"""One rank of a script that is simulated: `python -m tenfold.prediction.script_rank FOLDER`.

It runs the script as `python script.py` or `python -m module` would, after it has arranged that

- every process group is a `VirtualGroup`, whatever backend the script names;
- `torch.multiprocessing.spawn` runs the rank's part here, since the ranks exist already;
- the script's own code reads the virtual clock: `time.time`, `time.perf_counter_ns` and the like;
- optimizer steps are counted, and end the script where only a few of them are wanted.

At the end it writes its counts to its file in the folder.

A rank's clock advances by the processor time of the thread that trains, divided by the speed of its node. Operations
are carried out by the backend (`transport/process_group.py`) on real tensors; here they are also timed: an operation
starts when its last rank has begun it and the links are free, and `cluster/costs.py` gives its cost. A rank that waits
for it continues at its end; other ranks keep computing, so operations overlap with computing as the script allows.

Many ranks share few cores. A rank holds a core while it computes and gives it back while it waits. DDP waits for its
futures at the end of backward; just before that, autograd calls a callback in which the rank waits for them and
completes them. If a script waits for futures elsewhere, in C++, a helper thread notices this, gives the core back and
completes them. The helper thread rests while the script computes, to avoid disturbing it.
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
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.costs import LinkCost
from tenfold.cluster.hardware import StepTime
from tenfold.cluster.workload import factors
from tenfold.common.files import write_atomically
from tenfold.errors import ExperimentError
from tenfold.machine.liveness import keep_freed_memory
from tenfold.prediction import SCRIPT_PLAN
from tenfold.transport.base import CHECK_SECONDS
from tenfold.transport.process_group import TenfoldProcessGroup
from tenfold.transport.process_group_work import GroupWork, Progress
from tenfold.transport.shared_collectives import Steps

MOST_SPANS = 400
"""Number of spans kept for a rank's lane."""
NAP_SECONDS = 150e-6
"""Minimum seconds between two checks of the script while operations are in progress and it sleeps."""
COMPUTING_NAP_SECONDS = 2e-3
"""The same while it computes."""
SPIN_SECONDS = 1e-3
"""Seconds for which a rank polls for the end of an operation if no other rank needs the core."""
COLD_SECONDS = 5e-4
"""A real rank that waits longer than this goes to sleep and computes more slowly afterward. A simulated rank sleeps
equally long, so its computing is measured under the same conditions; the sleep itself is not counted."""
LONGEST_NAP_SECONDS = 5e-3
ASLEEP_SHARE, AWAKE_SHARE = 0.1, 0.5
"""The maximum share of a core that a sleeping script uses, and the minimum share that a computing script uses."""
WATCH_SECONDS = 0.01
"""Seconds between two checks of a script that only computes: it may wait for a file, a store or another process."""
HEAD_BYTES = 16
"""A message begins with the sender's time."""


class Cores:
    """The cores that the ranks share: each is a byte in a pipe, which a rank takes out and puts back."""

    def __init__(self, pipe: Path) -> None:
        self._pipe = os.open(pipe, os.O_RDWR)
        self._lock = threading.Lock()
        self.is_held = False
        self.script_waits = False
        """Whether the script waits in a call, which takes a core before it returns."""

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Give the core back for the duration of the block, in which the script waits."""
        self.script_waits = True
        self.lend()
        try:
            yield
        finally:
            self.take(for_script=True)

    def take(self, *, for_script: bool = False) -> None:
        """Wait for a core unless this rank has one; while the script waits in a call, only that call may take one."""
        if not self.is_held:
            os.read(self._pipe, 1)
            with self._lock:
                if self.is_held or (self.script_waits and not for_script):
                    os.write(self._pipe, b"c")
                else:
                    self.is_held = True
        if for_script:
            self.script_waits = False

    def lend(self) -> None:
        with self._lock:
            if self.is_held:
                self.is_held = False
                os.write(self._pipe, b"c")


@dataclass
class OperationTimes:
    """The time of one kind of operation on one rank."""

    count: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    """Time on the links."""
    exposed: float = 0.0
    """Time in which the rank did nothing else, including waiting for other ranks."""


class RankClock:
    """The virtual time of this rank, by kind of work."""

    def __init__(self, rank: int, step_time: StepTime, seed: int) -> None:
        """Start at 0 for the calling thread; `step_time` is the node's time for a step of 1 s on this machine."""
        self._cpu = time.pthread_getcpuclockid(threading.get_ident())
        self._stat = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._rng = np.random.default_rng([seed, rank])
        persistent = factors(np.random.default_rng([seed, rank, 1]), step_time.noise, step_time.between_workers, (1,))
        self._step_time, self._mean = step_time, step_time.mean * float(persistent[0])
        self._factor = 1.0
        self._used = self.cpu_seconds()
        self._spans_from = 0.0
        self.seconds = 0.0
        self.link_free = 0.0
        """When the last operation of this rank ends."""
        self.times = {"compute": 0.0, "wait": 0.0, "communicate": 0.0}
        self.operations: dict[str, OperationTimes] = {}
        self.spans: list[tuple[str, float, float]] = []
        self._draw()

    def cpu_seconds(self) -> float:
        return time.clock_gettime(self._cpu)

    def is_asleep(self) -> bool:
        """Return whether that thread sleeps, rather than runs or waits for a core."""
        return self._stat.read_bytes().rpartition(b")")[2].split()[0] == b"S"

    def advance(self) -> float:
        """Count the computing since the last call, and return the time."""
        used = self.cpu_seconds()
        computed = (used - self._used) * self._factor
        self._used = used
        self.seconds += computed
        self.times["compute"] += computed
        return self.seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count the work in the block: the links' cost covers it."""
        self.advance()
        try:
            yield
        finally:
            self._used = self.cpu_seconds()

    def reach(self, name: str, start: float, end: float) -> None:
        """Advance to the end of an operation that started at `start`, unless that time has passed."""
        if end <= self.seconds:
            return
        begun, moved = self.seconds, min(end, max(self.seconds, start))
        self._note("compute", self._spans_from, begun)
        self._note("wait", begun, moved)
        self._note("communicate", moved, end)
        self.times["wait"] += moved - begun
        self.times["communicate"] += end - moved
        self.operations[name].exposed += end - begun
        self.seconds = self._spans_from = end
        self._draw()

    def count(self, name: str, nbytes: int, seconds: float) -> None:
        times = self.operations.setdefault(name, OperationTimes())
        times.count += 1
        times.nbytes += nbytes
        times.seconds += seconds

    def record(self) -> dict[str, Any]:
        """Return the counts at the end, as JSON can hold them."""
        self._note("compute", self._spans_from, self.advance())
        operations = {name: asdict(times) for name, times in self.operations.items()}
        return {"seconds": self.seconds, "times": self.times, "operations": operations, "spans": self.spans}

    def _draw(self) -> None:
        """Draw the slowdown of the node until the rank's next wait."""
        drawn = factors(self._rng, self._step_time.noise, self._step_time.between_steps, (1,))
        self._factor = self._mean * float(drawn[0])

    def _note(self, kind: str, begin: float, end: float) -> None:
        if end > begin and len(self.spans) < MOST_SPANS:
            self.spans.append((kind, begin, end - begin))


class VirtualRank:
    """This process as a rank of the virtual cluster: its clock, its core and its helper thread."""

    def __init__(self, rank: int, cluster: Cluster, workers: int, pipe: Path, seed: int = 0) -> None:
        """Take a core and start the clock."""
        self.rank = rank
        self.clock = RankClock(rank, cluster.step_times(workers, StepTime(mean=1.0))[rank], seed)
        self.costs: LinkCost = cluster.round_cost(workers)
        self.cores = Cores(pipe)
        self.cores.take()
        self.futures: deque[VirtualWork] = deque()
        """The operations whose futures the script may wait for."""
        self.arriving = threading.RLock()
        """Held while such an operation ends for the script, in the script's call or in the helper thread."""
        self.groups: list[KeptProgress] = []
        self.in_backward = False
        """Whether autograd will call `end_backward`."""
        self._wake = threading.Event()
        self.asleep_seconds = 0.0
        """Seconds in which the script slept, or waited for anything other than ranks."""
        self._costs: dict[tuple[Any, ...], tuple[float, ...]] = {}
        threading.Thread(target=self._keep, daemon=True, name="tenfold-virtual-rank").start()

    def leave(self) -> None:
        self.cores.script_waits = True
        self.cores.lend()

    def seconds_of(self, name: str, members: tuple[int, ...], nbytes: int, root: int) -> tuple[float, ...]:
        key = name, members, nbytes, root
        if key not in self._costs:
            cost = self.costs.operation(name, members, nbytes, root)
            every = np.broadcast_to(np.asarray(cost, dtype=float), (self.costs.wiring.workers,))
            self._costs[key] = tuple(every[list(members)].tolist())
        return self._costs[key]

    def begin_in_backward(self) -> None:
        """Let autograd call `end_backward` if an operation begins inside backward."""
        with suppress(RuntimeError):  # outside of backward
            torch.autograd.Variable._execution_engine.queue_callback(self.end_backward)
            self.in_backward = True

    def end_backward(self) -> None:
        """Wait for the operations whose futures DDP waits for next."""
        try:
            while (work := self._next_of_futures()) is not None:
                work.wait()
        finally:
            self.in_backward = False

    def wake(self) -> None:
        """Let the helper thread check the script now, unless the script itself will wait."""
        if not self.in_backward:
            self._wake.set()

    def _keep(self) -> None:
        """Advance operations, give the core back while the script sleeps, and complete the futures it waits for."""
        looked = checked = since = time.perf_counter()
        used, sleeps = self.clock.cpu_seconds(), False
        while True:
            nap = WATCH_SECONDS
            if self.futures or any(group.is_left_to_thread for group in self.groups):
                least = NAP_SECONDS if sleeps else COMPUTING_NAP_SECONDS
                nap = min(LONGEST_NAP_SECONDS, max(least, (looked - since) / 20))
            if self._wake.wait(nap):
                self._wake.clear()
                since = time.perf_counter()
            before, looked = looked, time.perf_counter()
            is_check_due = looked > checked + CHECK_SECONDS
            checked = looked if is_check_due else checked
            for group in [group for group in self.groups if group.is_left_to_thread]:
                group.carry_on(check=is_check_due)
            last, used = used, self.clock.cpu_seconds()
            share = (used - last) / (looked - before)
            if self.cores.script_waits:
                continue
            sleeps = self.clock.is_asleep()
            if share < ASLEEP_SHARE and sleeps:
                self.cores.lend()
                work = self._next_of_futures()
                if work is None:
                    self.asleep_seconds += looked - before
                elif work.done:
                    self.cores.take()
                    self._complete(work)
                    since = time.perf_counter()
            elif share > AWAKE_SHARE:
                self.cores.take()

    def _next_of_futures(self) -> "VirtualWork | None":
        with suppress(IndexError):
            return self.futures[0]
        return None

    def _complete(self, work: "VirtualWork") -> None:
        """Complete the future of an operation, unless the script has already done so."""
        with self.arriving:
            if work in self.futures:
                self.futures.remove(work)
                self.clock.advance()
                work.arrive()


class KeptProgress(Progress):
    """Advances the operations of a group, in the call that waits for one or else in the rank's helper thread."""

    def __init__(self, rank: VirtualRank, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rank = rank
        rank.groups.append(self)

    @property
    def is_left_to_thread(self) -> bool:
        """Whether operations are in progress that no call of the script waits for."""
        return not self._waiting and bool(self._collectives or self._messages)

    def wait(self, work: GroupWork) -> None:
        """Advance all operations until this one has ended, pausing if other ranks need the core."""
        since = checked = time.perf_counter()
        with self._waits():
            self._spin(work, SPIN_SECONDS)
            while not self.poll(work):
                now = time.perf_counter()
                if now > checked + CHECK_SECONDS:
                    checked = now
                    self._check(work)
                time.sleep(min(LONGEST_NAP_SECONDS, max(NAP_SECONDS, (now - since) / 20)))

    def close(self) -> None:
        with suppress(ValueError):
            self._rank.groups.remove(self)

    def _linger(self, _work: GroupWork) -> None:
        self._wake_thread()

    def _wake_thread(self) -> None:
        if self._collectives or self._messages:
            self._rank.wake()


class VirtualWork(GroupWork):
    """An operation that ends at a virtual time for the ranks that wait for it."""

    def __init__(self, rank: VirtualRank, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rank = rank
        self.begun = rank.clock.seconds
        self.start = self.end = 0.0

    def take_place(self, start: float, end: float, nbytes: int) -> None:
        self.start, self.end = start, end
        self._rank.clock.count(self.name, nbytes, end - start)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002 - that is real time
        """Wait for its end, and advance the rank's clock to that time."""
        clock = self._rank.clock
        with clock.stopped():
            if not self.done:
                with self._rank.cores.given_back():
                    self._progress.wait(self)
            if self.error is not None:
                raise self.error
            if self.end > clock.seconds + COLD_SECONDS:
                with self._rank.cores.given_back():
                    time.sleep(COLD_SECONDS)
            with self._rank.arriving:
                if self in self._rank.futures:
                    self._rank.futures.remove(self)
                self.arrive()
        return True

    def is_completed(self) -> bool:
        clock = self._rank.clock
        with clock.stopped():
            if not self.done:
                with self._rank.cores.given_back():
                    time.sleep(NAP_SECONDS)
                    self._progress.poll(self)
        return self.done and self.end <= clock.seconds

    def get_future(self) -> Any:
        """Return a future that the rank's helper thread completes when the script waits for it."""
        with self._progress.lock:
            if self._future is None:
                future = self._future = self._make_future()
                if self.error is not None:
                    future.set_result(None)
                else:
                    self._rank.futures.append(self)
                    self._rank.wake()
            return self._outcome

    def finish(self, error: BaseException | None = None) -> None:
        """Mark it as ended; unless it failed, its future completes only when the script waits for it."""
        future, self._future = self._future, self._future if error is not None else None
        super().finish(error)
        self._future = future
        self._rank.wake()

    def arrive(self) -> None:
        """Advance the rank's clock to its end, and complete its future."""
        self._rank.clock.reach(self.name, self.start, self.end)
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class VirtualGroup(TenfoldProcessGroup):
    """A process group whose operations take virtual time."""

    def __init__(self, rank: VirtualRank, store: Any, place: int, numbers: Sequence[int], timeout: float) -> None:
        """Connect to the other ranks while the clock is stopped."""
        with rank.clock.stopped(), rank.cores.given_back():
            super().__init__(store, place, numbers, timeout)
            self._progress = KeptProgress(rank, self._watch, self._messages.advance)
        self._virtual = rank
        self._numbers = tuple(numbers)

    def _begin(self, name: str, steps: Steps, tensors: Sequence[Tensor], opts: Any) -> GroupWork:
        with self._virtual.clock.stopped():
            self._check_tensors(tensors)
            if opts is None or opts.asyncOp:
                self._virtual.begin_in_backward()
            work = self._work(name, lambda work: self._timed(work, steps, tensors, opts), tensors)
            self._progress.begin(work)
        if opts is not None and not opts.asyncOp:
            work.wait()
        return work

    def _message(self, name: str, tensor: Tensor, peer: int | None, tag: int, _timeout: float) -> GroupWork:
        with self._virtual.clock.stopped():
            self._check_tensors([tensor])
            flat = torch.empty(HEAD_BYTES + tensor.nbytes, dtype=torch.uint8)
            flat[:HEAD_BYTES].view(torch.float64).fill_(self._virtual.clock.seconds)
            flat[HEAD_BYTES:] = tensor.detach().reshape(-1).view(torch.uint8)
            transfer = self._begin_transfer(name, flat, peer, tag)
            work = self._work(name, lambda work: self._timed_message(work, flat, tensor), [tensor], transfer)
            self._progress.begin(work)
        return work

    def _work(
        self, name: str, steps: Callable[[VirtualWork], Steps], tensors: Sequence[Tensor], transfer: Any = None
    ) -> VirtualWork:
        work = VirtualWork(self._virtual, self._progress, name, iter(()), list(tensors), self._timeout, transfer)
        work._steps = steps(work)
        return work

    def _timed(self, work: VirtualWork, steps: Steps, tensors: Sequence[Tensor], opts: Any) -> Steps:
        """Carry out an operation and compute its end from all ranks' start times and numbers of bytes."""
        begun = max(work.begun, self._virtual.clock.link_free)
        own = torch.tensor([begun, sum(map(_nbytes, tensors))], dtype=torch.float64)
        rows = torch.empty((self._size, 2), dtype=torch.float64)
        yield from self._collectives.all_gather(own, list(rows))
        yield from steps
        start, nbytes = (float(value) for value in rows.max(dim=0).values)
        costs = self._virtual.seconds_of(work.name, self._numbers, int(nbytes), getattr(opts, "rootRank", 0))
        work.take_place(start, start + costs[self._rank], int(nbytes))
        self._virtual.clock.link_free = work.end

    def _timed_message(self, work: VirtualWork, flat: Tensor, tensor: Tensor) -> Steps:
        """Transfer a message: a send ends when its bytes have left, a receive when they have arrived."""
        yield from self._transfer(work.transfer, flat, flat)
        begun = float(flat[:HEAD_BYTES].view(torch.float64)[0])
        peer = work.transfer.peer if work.name == "send" else work.transfer.source
        ends = self._numbers[self._rank], self._numbers[peer]
        src, dst = ends if work.name == "send" else ends[::-1]
        cost = self._virtual.costs.exchange(src, dst, tensor.nbytes, 0)
        work.take_place(begun, begun + cost, tensor.nbytes)
        if work.name == "recv":
            tensor.detach().copy_(flat[HEAD_BYTES:].view(tensor.dtype).view(tensor.shape))


def _nbytes(tensor: Tensor) -> int:
    return tensor._values().nbytes + tensor._indices().nbytes if tensor.is_sparse else tensor.nbytes


CLOCKS = ("time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "monotonic_ns")
BACKEND = "tenfold_virtual"
PR_SET_PDEATHSIG = 1
PYTHON_OR_OURS = (sysconfig.get_paths()["stdlib"], str(Path(__file__).parents[1]), "<")
PACKAGES = ("site-packages", "dist-packages")


class Observer:
    """Counts the operations of this rank while the script runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads((folder / SCRIPT_PLAN).read_text())
        self.number = int(os.environ["RANK"])
        self.rank: VirtualRank | None = None
        self.start_seconds = 0.0
        self.began: dict[str, float] = {}
        """The readings of Python's clocks when the virtual clock began, by name."""
        self.clocks = {name: getattr(time, name) for name in CLOCKS}
        self.clock_reads = 0
        self.step_ends: list[float] = []
        self.first_step_compute = 0.0
        """Seconds of computing up to the end of this rank's first optimizer step."""
        self.batches: int | None = None
        """The length of the DataLoader that the script iterates over."""
        self.steps_per_epoch: int | None = None

    def install(self) -> None:
        c10d.Backend.register_backend(BACKEND, self._make_group, extended_api=True, devices=["cpu"])
        original = c10d._new_process_group_helper

        @functools.wraps(original)
        def make_group(size: int, rank: int, ranks: Any, backend: Any, *rest: Any, **options: Any) -> Any:
            options.pop("backend_options", None)
            if "tenfold" in str(backend):  # also "cpu:tenfold,cuda:nccl"
                keep_freed_memory()  # as Tenfold's process groups do
            group, store = original(size, rank, ranks, BACKEND, *rest, **options)
            if group in c10d._world.pg_map:  # absent if the rank is not a member
                # The script may ask for its backend; a GPU backend would make the script, or torch, use GPUs.
                c10d._world.pg_map[group] = "tenfold" if str(backend) == "tenfold" else "gloo", store
            return group, store

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
        if self.rank is None:
            return
        self.rank.leave()
        usage, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        record = self.rank.clock.record() | {
            "start": self.start_seconds,
            "step_ends": self.step_ends,
            "first_step_compute": self.first_step_compute,
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
        if not numbers:
            raise ExperimentError('the script uses the backend "mpi", which cannot be simulated; use "gloo"')
        if len(numbers) > world or max(numbers) >= world:
            raise ExperimentError(f"the script creates a group of {len(numbers)} ranks, but {world} are simulated")
        if self.rank is None:
            self.start_seconds = time.process_time()
            cluster = Cluster(**plan["cluster"])
            self.began = {name: clock() for name, clock in self.clocks.items()}
            self.rank = VirtualRank(self.number, cluster, world, self.folder / "cores", plan["seed"])
        seconds = options.timeout.total_seconds() * (1 + world)  # ranks take turns on few cores
        return VirtualGroup(self.rank, options.store, options.group_rank, numbers, seconds)

    def _run_here(
        self, function: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any
    ) -> "EndedProcesses | None":
        """Run the part of `torch.multiprocessing.spawn` that belongs to the process with this rank's number."""
        if nprocs != self.plan["workers"]:
            raise ExperimentError(
                f"the script starts {nprocs} ranks itself, but {self.plan['workers']} are simulated; use "
                f"--workers {nprocs}, or change nprocs in the script"
            )
        function(self.number, *args)
        return None if join else EndedProcesses()

    def _virtual_clock(self, name: str) -> Callable[[], float]:
        """Return a clock that shows virtual time to the script, and real time to Python and installed packages."""
        original: Callable[[], float] = self.clocks[name]
        own = str(self._package())
        users: dict[str, bool] = {}

        @functools.wraps(original)
        def read() -> float:
            if self.rank is None:
                return original()
            file = sys._getframe(1).f_code.co_filename
            if file not in users:
                is_installed = file.startswith(PYTHON_OR_OURS) or any(name in file for name in PACKAGES)
                users[file] = file.startswith(own) or not is_installed
            if not users[file]:
                return original()
            self.clock_reads += 1
            seconds = self.rank.clock.advance()
            return self.began[name] + (int(1e9 * seconds) if name.endswith("_ns") else seconds)

        return read

    def _package(self) -> Path:
        """Return the folder of the package that is run as a module, or the script."""
        path, module = Path(self.plan["script"]), self.plan["module"]
        depth = module.count(".") + (path.name == "__main__.py") if module else 0
        return path.parents[depth - 1] if depth else path

    def _end_step(self, *_: Any) -> None:
        if self.rank is None:
            return
        self.step_ends.append(self.rank.clock.advance())
        if len(self.step_ends) == 1:
            self.steps_per_epoch = self.batches
            self.first_step_compute = self.rank.clock.times["compute"]
        if len(self.step_ends) == self.plan["stop_after"]:
            self.record()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


class EndedProcesses:
    """The return value of `torch.multiprocessing.spawn` for a script that joins its processes itself."""

    def join(self, *_: Any, **__: Any) -> bool:
        return True


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # end this rank when its parent ends for any reason
    if os.getppid() == 1:  # the parent has already ended
        return
    observer = Observer(Path(sys.argv[1]))
    observer.install()
    script, module = observer.plan["script"], observer.plan["module"]
    sys.argv = [script, *observer.plan["arguments"]]
    sys.path.insert(0, str(Path.cwd() if module else Path(script).parent))
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    observer.record()


if __name__ == "__main__":
    main()
