"""One rank of a launcher: how it joins the others, and how a stall of it is noticed."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import numpy as np
import psutil
import torch
from torch import Tensor

from tenfold.common import PARTS
from tenfold.data import Part, Splits, Tensors
from tenfold.data.part import Indices, as_indices, digest, move, select_rows, tree_leaves, tree_map
from tenfold.errors import DataError, WorkerLost
from tenfold.launch.detect import World
from tenfold.machine import devices
from tenfold.machine.liveness import LOOK_SECONDS, LifeWatch, WorkerProgress, describe_stall
from tenfold.machine.rank_guard import start_guard
from tenfold.runs import Emit, Event, Metric, Note, Span, Warned, checkpoint
from tenfold.training.evaluation import EvaluatedShare
from tenfold.training.metrics import ExactSum, PairCounts
from tenfold.transport import Network
from tenfold.transport.codec import describe_tensor, empty_tensors, register
from tenfold.transport.meeting import REPORT_STOP
from tenfold.transport.network import LEAVE_SECONDS
from tenfold.workers.coordinator import Coordinator
from tenfold.workers.task import Decision, Message, Saved, Task


@contextmanager
def watch_progress(world: World, network: Network, stall_after: float | None) -> Iterator[WorkerProgress]:
    """Yield what this rank publishes its progress to; a thread tells all ranks when there is none for too long.

    The thread that trains may be blocked for ever then, so the process ends when the others had time to learn why. If
    it keeps Python's lock, so that no thread runs, the rank's guard ends the process.
    """
    guard, over = start_guard(world, REPORT_STOP), threading.Event()
    progress = guard.watch_progress(stall_after) if guard is not None else WorkerProgress()
    network.waiting = progress.mark_waiting
    thread = threading.Thread(
        target=_watch, args=(network, progress, stall_after, over), daemon=True, name="tenfold-stall-watch"
    )
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        network.waiting = None
        progress.clear()


def _watch(network: Network, progress: WorkerProgress, stall_after: float | None, over: threading.Event) -> None:
    watch = LifeWatch([progress], stall_after)
    while not over.wait(LOOK_SECONDS):
        now = time.monotonic()
        watch.look(now)
        if stalled := watch.find_stalled(now, {0: os.getpid()}):
            name = f"worker {network.rank} (process {os.getpid()} on {socket.gethostname()})"
            network.report_failure(WorkerLost(network.rank, f"{name} {describe_stall(stalled[0], stall_after)}"))
            if not over.wait(LEAVE_SECONDS):
                os._exit(1)


class Scattered(Part):
    """A part of which only some samples are here, counted as in the whole; the targets of all are known."""

    def __init__(self, rows: Tensor, x: Any, y: Tensor) -> None:
        """Take the samples with the numbers `rows`; `y` has the targets of all samples."""
        self.rows = rows
        self.x = x
        self.y = y
        self._place = torch.full((len(y),), -1, dtype=torch.int64, device=y.device)
        self._place[rows] = torch.arange(len(rows), device=y.device)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def targets(self) -> Tensor:
        """The y of all samples."""
        return self.y

    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Tensor]]:
        """Yield samples that are here."""
        for batch in indices:
            rows = as_indices(batch, self.y.device)
            places = self._place.index_select(0, rows)
            if places.numel() and int(places.min()) < 0:
                raise DataError('a sample was asked for that is on another rank; set data.distribute = "each"')
            yield select_rows(self.x, places), self.y.index_select(0, rows)

    def subset(self, indices: Indices) -> Tensors:
        """Copy samples that are here into a part of their own."""
        x, y = next(self.batches([indices]))
        return Tensors(x, y)

    def fingerprint(self) -> str:
        """Digest of what is here."""
        return digest(self.rows, *tree_leaves(self.x), self.y)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Scattered":
        """Move everything to `device`."""
        everything = (self.rows, self.x, self.y)
        return Scattered(*(tree_map(partial(move, device=device, dtype=dtype), item) for item in everything))


def scatter(network: Network, task: Task | None) -> Splits:
    """Send every rank its share of rank 0's data, and return this rank's; the other ranks have no task yet."""
    if task is None:
        return _receive(network, network.broadcast())
    network.broadcast(_described(task, network.size))
    parts: dict[str, Any] = dict(task.splits.parts)
    for rank in range(1, network.size):  # one after the other: only one share at a time is copied
        for name, part in parts.items():
            rows = _rows(task, name, rank)
            tensors = (rows, *tree_leaves(select_rows(part.x, rows.to(part.device))), part.y)
            network.exchange([(rank, tensor.cpu().contiguous()) for tensor in tensors], [])
    return task.splits


def _receive(network: Network, announced: dict[str, Any]) -> Splits:
    parts: dict[str, Any] = {}
    for name, (x, y, counts) in announced["parts"].items():
        count = counts[network.rank]
        rows, targets = empty_tensors([["int64", [count]], y])
        samples = _empty_inputs(x, count)
        network.exchange([], [(0, tensor) for tensor in (rows, *tree_leaves(samples), targets)])
        parts[name] = Scattered(rows, samples, targets)
    about = announced["about"]
    if about["groups"] is not None:
        about["groups"] = np.array(about["groups"])
    return Splits(**about, **parts)


def _empty_inputs(described: Any, count: int) -> Any:
    """Return empty tensors for `count` samples, in the described form: a tensor, or a tuple or dict of tensors."""
    if isinstance(described, dict):
        return {key: _empty_inputs(item, count) for key, item in described.items()}
    if isinstance(described, tuple):
        return tuple(_empty_inputs(item, count) for item in described)
    return empty_tensors([[described[0], [count, *described[1]]]])[0]


def _described(task: Task, size: int) -> dict[str, Any]:
    """Return what the ranks must know to receive: types, shapes, and counts."""
    parts: dict[str, Any] = {}
    for name, part in task.splits.parts.items():
        if not isinstance(part, Tensors):
            raise DataError(
                f'data.distribute = "scatter" sends tensors, but the {name} part of {task.splits.name} is read sample '
                'by sample; set data.distribute = "each"'
            )
        counts = [len(_rows(task, name, rank)) for rank in range(size)]
        samples = tree_map(lambda tensor: describe_tensor(tensor[0]), part.x)
        parts[name] = (samples, describe_tensor(part.y), counts)
    about = {field.name: getattr(task.splits, field.name) for field in fields(task.splits) if field.name not in PARTS}
    if task.splits.groups is not None:
        about["groups"] = task.splits.groups.tolist()
    about["numbers"] = {}  # rank 0 records for all
    return {"parts": parts, "about": about}


def _rows(task: Task, name: str, rank: int) -> Tensor:
    """Return the numbers of the samples that a rank learns from, or evaluates."""
    if name == "train":
        return torch.as_tensor(task.shards[rank], dtype=torch.int64)
    return task.share(getattr(task.splits, name), rank)


@dataclass(frozen=True)
class Orders:
    """What rank 0 tells the others before they begin."""

    checkpoints: Path | None
    manifest: dict[str, Any] | None
    now: float
    """Seconds since the run began."""


register(Orders, Metric, Span, Note, Warned, Decision, EvaluatedShare, ExactSum, PairCounts, *get_args(Message))


class EndedByLauncher(WorkerLost):
    """The launcher ended this rank."""


class RankConnection:
    """Sends a rank's events and messages to rank 0, which answers all ranks."""

    def __init__(
        self, network: Network, emit: Emit | None, coordinator: Coordinator | None, folder: Path | None
    ) -> None:
        self._network = network
        self._coordinator = coordinator
        self._folder = folder
        self._events: list[Event] = []
        self._emit = emit
        self.emit: Emit = emit or self._keep

    def _keep(self, event: Event) -> None:
        self._events.append(replace(event, worker=self._network.rank))

    def report(self, message: Message) -> Decision:
        """Report to rank 0 what happened since the last time, and return its answer."""
        heard = self._network.gather((self._events, message))
        self._events.clear()
        decision = None
        if self._coordinator is not None and self._emit is not None:
            for events, _ in heard[1:]:
                for event in events:
                    self._emit(event)
            decision = self._coordinator.decide([said for _, said in heard])
        answer: Decision = self._network.broadcast(decision)
        if isinstance(message, Saved) and answer.saved and self._folder is not None:
            clear(self._folder, self._network.rank, but=message.epoch)
        return answer


def own_device(name: str, local_rank: int) -> torch.device:
    """Return the device of one of a host's ranks: each takes its own GPU if there are enough."""
    device = devices.resolve(name)
    if device.type == "cuda" and ":" not in name:
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return device


def launch_name(world: World) -> str:
    """Return a name of the launch that restarted ranks find again: the launcher's own, or its process."""
    if world.launch:
        return world.launch
    parent = psutil.Process(os.getppid())
    return f"{parent.pid}-{parent.create_time():.0f}"


def clear(folder: Path, rank: int, but: int | None = None) -> None:
    """Remove a rank's checkpoints, except for those of one epoch and of the one saved before it."""
    files = sorted(folder.glob(f"epoch-*-worker-{rank}.pt"), key=checkpoint.epoch_of)
    kept = [path for path in files if but is not None and checkpoint.epoch_of(path) <= but][-2:]
    for path in files:
        if path not in kept:
            with suppress(OSError):
                path.unlink()
    if but is None:
        with suppress(OSError):
            folder.rmdir()
            folder.parent.rmdir()


@contextmanager
def ending_by_signal(rank: int) -> Iterator[None]:
    """Turn the signal by which launchers end their ranks into an error, so that what happened is still recorded."""
    if threading.current_thread() is not threading.main_thread() or _ending_by_signal:
        try:
            yield
        except BaseException:
            _ignore_signal_while_recording()
            raise
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        _ignore_signal_while_recording()
        raise EndedByLauncher(
            rank, f"worker {rank} was ended by the launcher: another rank was lost, or the job was cancelled"
        )

    before = signal.signal(signal.SIGTERM, end)
    _ending_by_signal.append(rank)
    try:
        yield
    finally:
        _ending_by_signal.pop()
        signal.signal(signal.SIGTERM, before)


_ending_by_signal: list[int] = []
"""The rank whose outermost block handles SIGTERM, and restores the handler that was there before."""


def _ignore_signal_while_recording() -> None:
    if threading.current_thread() is threading.main_thread() and _ending_by_signal:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
