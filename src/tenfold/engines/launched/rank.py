"""What a rank under a launcher exchanges with rank 0, apart from its training."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import psutil
import torch

from tenfold.errors import WorkerLost
from tenfold.launch.detect import World
from tenfold.machine import devices
from tenfold.runs import Emit, Event, Metric, Note, Span, Warned, checkpoint
from tenfold.training.evaluation import EvaluatedShare
from tenfold.training.metrics import ExactSum, PairCounts
from tenfold.transport import Network
from tenfold.transport.network import codec
from tenfold.workers.messages import Decision, Message, Saved
from tenfold.workers.supervisor import Supervisor


@dataclass(frozen=True)
class Orders:
    """What rank 0 tells the others before they begin."""

    checkpoints: Path | None
    manifest: dict[str, Any] | None
    now: float
    """Seconds since the run began."""


codec.register(Orders, Metric, Span, Note, Warned, Decision, EvaluatedShare, ExactSum, PairCounts, *get_args(Message))


class EndedByLauncher(WorkerLost):
    """The launcher ended this rank."""


class RankConnection:
    """Sends a rank's events and messages to rank 0, which answers all ranks."""

    def __init__(self, network: Network, emit: Emit | None, supervisor: Supervisor | None, folder: Path | None) -> None:
        self._network = network
        self._supervisor = supervisor
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
        if self._supervisor is not None and self._emit is not None:
            for events, _ in heard[1:]:
                for event in events:
                    self._emit(event)
            decision = self._supervisor.decide([said for _, said in heard])
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
    found = sorted(folder.glob(f"epoch-*-worker-{rank}.pt"), key=checkpoint.epoch_of)
    kept = [path for path in found if but is not None and checkpoint.epoch_of(path) <= but][-2:]
    for path in found:
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
