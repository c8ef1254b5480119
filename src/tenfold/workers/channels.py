"""The memory in which workers of an asynchronous strategy exchange weights, each at its own pace."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from tenfold.errors import ModelError
from tenfold.mixing import Round, Strategy
from tenfold.transport import Segment, SharedMemoryTransport, SingleWorkerTransport, StopReason, Transport
from tenfold.transport.segment import MAILBOX, Until

CENTRE_ROWS = 2


@dataclass
class ExchangeMemory:
    """One worker's view of what all workers share."""

    center: Tensor
    """What is kept for all workers: a row of weights and a row of Adagrad's sums."""
    replicas: Tensor
    """All workers' states, one per row, for strategies that change a partner's weights."""
    versions: Any
    """How many times each replica, and last the center, has been changed by any worker."""
    locks: Sequence[AbstractContextManager[Any]]
    """One for each replica, and the last for the center."""
    wait_seconds: float = 0.0
    """Seconds that this worker has waited for locks."""
    communicate_seconds: float = 0.0
    """Seconds that it has held them."""

    @contextmanager
    def holding(self, *owners: int) -> Iterator[None]:
        """Hold the locks of these replicas (-1: the center), always taken in the same order."""
        asked = perf_counter()
        with ExitStack() as stack:
            for owner in sorted(range(len(self.locks))[owner] for owner in owners):
                stack.enter_context(self.locks[owner])
            held = perf_counter()
            yield
            self.communicate_seconds += perf_counter() - held
        self.wait_seconds += held - asked


def create_center(workers: int, numel: int) -> Segment:
    """Return new shared memory for a center of `numel` weights, the versions of all replicas, and locks."""
    rows_for_versions = -(-(workers + 1) // MAILBOX)
    return Segment.create(max(CENTRE_ROWS, rows_for_versions), numel)


Result = TypeVar("Result")
MakeRound = Callable[[int], Round]
"""Returns the round for a given number of replicas."""


@dataclass
class Channels:
    """One worker's connections to the others."""

    transport: Transport
    """Its buffer is the replica's whole state: weights and buffers."""
    gradient_transport: Transport
    """For gradients, or the optimizer's state; the size of its buffer is `exchange_size` of the network."""
    exchange_memory: ExchangeMemory | None = None
    """What asynchronous strategies share; None where workers average in rounds."""
    step: int = 0
    """The step that the worker is in, over the run."""
    is_elastic: ClassVar[bool] = False
    """Whether workers can be lost and replaced while the others train."""

    def run_round(self, transport: Transport, make_round: MakeRound, samples: Sequence[float]) -> Round:
        """Carry out a round of training, made for the replicas that take part; return the round.

        `samples` are the numbers of samples that the workers have seen, which weight the mean.
        """
        round_ = make_round(transport.size)
        if not round_.is_idle:
            transport.mix(round_, samples)
        return round_

    def try_round(self, transport: Transport, make_round: MakeRound, samples: Sequence[float]) -> Round:
        """Carry out a round outside of training, inside `repeat`, which starts again if the members change."""
        return self.run_round(transport, make_round, samples)

    def repeat(self, attempt: Callable[[], Result]) -> Result:
        """Call `attempt`, which all workers do together; start again whenever the members change."""
        return attempt()

    def begin_evaluation(self) -> None:
        """Ask that no worker joins until this evaluation has been answered."""

    def reach_join_point(self, step: int, state: Callable[[], dict[str, Any]], *, epoch_begins: bool = False) -> None:
        """Let workers that replace lost ones join here, with the state that `state` returns.

        There is a join point after every step, counted over the run, and one more where an epoch begins.
        """

    def waited_and_communicated(self) -> tuple[float, float]:
        """Return the seconds that this worker has spent waiting and communicating so far."""
        parts = (self.transport, self.gradient_transport, self.exchange_memory)
        used = [part for part in parts if part is not None]
        return sum(part.wait_seconds for part in used), sum(part.communicate_seconds for part in used)


def single_worker_channels(numel: int, device: torch.device, strategy: Strategy | None = None) -> Channels:
    """Return the channels of a single worker; it never sends gradients, and few strategies exchange with a center."""
    transport, gradients = SingleWorkerTransport(numel, device=device), SingleWorkerTransport(1, device=device)
    if strategy is None or not strategy.asynchronous:
        return Channels(transport, gradients)
    rows = torch.zeros(CENTRE_ROWS, numel if strategy.has_center else 0, device=device)
    locks = [nullcontext(), nullcontext()]
    return Channels(transport, gradients, ExchangeMemory(rows, transport.buffer[None], [0.0, 0.0], locks))


class SharedChannels:
    """The shared memory of all workers' channels, made by the process that starts them; each worker opens its own."""

    def __init__(
        self,
        workers: int,
        numel: int,
        locks: Sequence[AbstractContextManager[Any]] | None = None,
        *,
        strategy: Strategy,
        gradient_numel: int = 0,
        shapes: tuple[tuple[int, ...], ...] | None = None,
    ) -> None:
        """Create the memory; `locks`, one for each worker and one for the center, are for workers that are threads.

        `gradient_numel` is how many numbers a round of gradients or of the optimizer's state exchanges, 0 where there
        are none. `shapes` are those of the state that every replica has (default: not checked).
        """
        self.workers = workers
        self._shapes = shapes
        self.locks = locks
        self._segments = {
            "states": Segment.create(workers, numel),
            "gradients": Segment.create(workers, max(1, gradient_numel)),
        }
        if strategy.asynchronous:
            self._segments["center"] = create_center(workers, numel if strategy.has_center else 1)
        self.names = {kind: segment.name for kind, segment in self._segments.items()}
        self._attached: dict[str, Segment] = {}

    def open(
        self,
        rank: int,
        until: Until | None = None,
        lock: AbstractContextManager[Any] | None = None,
        waiting: Callable[[], None] = lambda: None,
        make: Callable[..., Channels] = Channels,
    ) -> Channels:
        """Return the channels of one worker, in its process; `waiting` is called repeatedly while it waits.

        Where workers share a process, `until` is how they wait, and `lock` replaces all locks. `make` takes the fields.
        """

        def check(_: float) -> None:
            waiting()

        # How long a worker may take is for the process that started it to decide.
        timeout = math.inf
        if not self._attached:
            self._attached = {kind: Segment.attach(name) for kind, name in self.names.items()}
        return make(
            SharedMemoryTransport(self._attached["states"], rank, timeout, until=until, check=check),
            SharedMemoryTransport(self._attached["gradients"], rank, timeout, until=until, check=check),
            self._exchange_memory(lock) if "center" in self._attached else None,
        )

    def _exchange_memory(self, lock: AbstractContextManager[Any] | None) -> ExchangeMemory:
        center, replicas, count = self._attached["center"], self._attached["states"].buffers, self.workers + 1
        locks = self.locks or [center.lock(number) for number in range(count)]
        return ExchangeMemory(
            torch.from_numpy(center.buffers[:CENTRE_ROWS]),
            torch.from_numpy(replicas),
            center.mailboxes.reshape(-1),
            locks if lock is None else [lock] * count,
        )

    def check_shapes(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Raise ModelError if a replica's state does not have the shapes that it has in the process that made this."""
        if self._shapes is not None and shapes != self._shapes:
            raise ModelError(
                f"the model has other weights here than in the main process ({_difference(shapes, self._shapes)}); "
                "it must be the same network in every process"
            )

    def ask_for(self, membership: int) -> None:
        """Make all workers with another membership pause, see `ElasticChannels`."""
        for segment in self._segments.values():
            segment.membership = membership

    def stop(self, reason: StopReason, rank: int) -> None:
        """Make all workers that wait for others stop with an error."""
        for segment in self._segments.values():
            segment.stop(reason, rank)

    def close(self) -> None:
        """Free the shared memory."""
        for segment in self._segments.values():
            segment.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "workers": self.workers,
            "locks": None,
            "_shapes": self._shapes,
            "_attached": {},
        }


def _difference(here: Sequence[tuple[int, ...]], there: Sequence[tuple[int, ...]]) -> str:
    """Return in words where shapes begin to differ."""
    for one, other in zip(here, there, strict=False):
        if one != other:
            return f"shape {one}, not {other}"
    return f"{len(here)} tensors, not {len(there)}"
