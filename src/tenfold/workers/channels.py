"""A worker's connections to the others: the transports of rounds, and shared memory."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from tenfold.mixing import Round, Strategy
from tenfold.training.lbfgs import LbfgsState
from tenfold.training.replica import product
from tenfold.transport import Segment, SharedMemoryTransport, SingleWorkerTransport, StopReason, Transport
from tenfold.transport.model_group import ModelGroup
from tenfold.transport.segment import MAILBOX
from tenfold.transport.shared_memory import Until

CENTER_ROWS = 2
MATRICES_KEPT = 64
"""How many matrices of rounds stay on a device."""


@dataclass
class ExchangeMemory:
    """One worker's view of the memory that all workers share."""

    center: Tensor
    """The center: a row of weights and a row of Adagrad's sums."""
    replicas: Tensor
    """All workers' states, one per row, for strategies that change a partner's weights."""
    versions: Any
    """How many times each replica, and last the center, has been changed by any worker."""
    locks: Sequence[AbstractContextManager[Any]]
    """One for each replica, then one for each server of the center."""
    wait_seconds: float = 0.0
    """Seconds that this worker has waited for locks."""
    communicate_seconds: float = 0.0
    """Seconds that it has held them."""

    @contextmanager
    def holding(self, *owners: int) -> Iterator[None]:
        """Hold the locks of these owners, always acquired in the same order."""
        began = perf_counter()
        with ExitStack() as stack:
            for owner in sorted(range(len(self.locks))[owner] for owner in owners):
                stack.enter_context(self.locks[owner])
            held = perf_counter()
            yield
            self.communicate_seconds += perf_counter() - held
        self.wait_seconds += held - began


# The shared memory of L-BFGS, see `sandblaster.py`.

MOST_BLOCKS = 16
"""Blocks of a long vector; more workers than that only compute portions."""
COMMAND, RESULTS, STATES, LOSSES = 0, 1, 1 + MOST_BLOCKS, 3 + MOST_BLOCKS
"""Rows of the board; there are two for the state, so one is complete at any time."""


@dataclass
class VectorMemory:
    """The vectors of all workers, one per row, and the board for commands, results and the coordinator's state."""

    vectors: Segment
    board: Segment
    is_shared: bool = True

    @classmethod
    def create(cls, numel: int, rows: int, portions: int, dtype: torch.dtype) -> "VectorMemory":
        """Allocate this many rows, and further ones for the gradients of portions."""
        board = Segment.create(LOSSES + 1, rows * rows + 4 * (rows + portions), torch.float64, contents="numbers")
        return cls(Segment.create(rows + portions, numel, dtype), board)

    @property
    def number(self) -> int:
        """The number of the current command; negative while the command is being written."""
        return self.board.words[self.board.counter_at(COMMAND)]

    def issue(self, *numbers: float) -> int:
        """Write a command on the board, and return its number."""
        number, at = abs(self.number) + 1, self.board.counter_at(COMMAND)
        self.board.words[at] = -number
        self.board.buffers[COMMAND, : len(numbers) + 1] = len(numbers), *numbers
        self.board.words[at] = number
        return number

    def read(self) -> "Command | None":
        """Return the current command; None before the first one, and while one is being written."""
        number = self.number
        row = self.board.buffers[COMMAND]
        numbers = row[1 : 1 + int(row[0])].tolist()
        return Command(number, int(numbers[0]), int(numbers[1]), numbers[2:]) if 0 < number == self.number else None

    def commit(self, state: LbfgsState, loss: float | None = None) -> None:
        if loss is not None:
            self.board.buffers[LOSSES, state.iterations % self.board.numel] = loss
        at, numbers = self.board.counter_at(STATES), state.numbers()
        count = self.board.words[at] + 1
        self.board.buffers[STATES + count % 2, : len(numbers)] = numbers
        self.board.words[at] = count

    def state(self) -> LbfgsState | None:
        count = self.board.words[self.board.counter_at(STATES)]
        return LbfgsState.of(self.board.buffers[STATES + count % 2]) if count else None

    def close(self) -> None:
        """Prevent other processes from opening the memory."""
        self.vectors.close()
        self.board.close()
        self.is_shared = False

    def lock(self, segment: Segment, number: int) -> AbstractContextManager[Any]:
        return segment.lock(number) if self.is_shared else nullcontext()


class Command(NamedTuple):
    """A command of the coordinator."""

    number: int
    step: int
    """The step of the run that it belongs to."""
    kind: int
    numbers: list[float]


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
    """The shared memory of asynchronous strategies; None where workers average in rounds."""
    group: ModelGroup | None = None
    """The workers that hold parts of the same replica; None where this one holds a whole one."""
    vector_memory: VectorMemory | None = None
    """The vectors of an optimizer that all workers carry out together; None for any other."""
    step: int = 0
    """The step that the worker is in, over the run."""
    is_elastic: ClassVar[bool] = False
    """Whether workers can be lost and replaced while the others train."""

    def run_round(self, transport: Transport, make_round: MakeRound, samples: Sequence[float]) -> Round:
        """Carry out a round of training among the current members, and return the round.

        `samples` are the numbers of samples that the workers have seen; they are the weights of the mean.
        """
        round_ = make_round(transport.size)
        if not round_.is_idle:
            transport.mix(round_, samples)
        return round_

    def try_round(self, transport: Transport, make_round: MakeRound, samples: Sequence[float]) -> Round:
        """Carry out a round outside of training, inside `repeat`, which retries if the members change."""
        return self.run_round(transport, make_round, samples)

    def repeat(self, attempt: Callable[[], Result]) -> Result:
        """Call `attempt` together with all workers, and call it again whenever the members change."""
        return attempt()

    def begin_evaluation(self) -> None:
        """Delay joining workers until this evaluation has been answered."""

    def reach_join_point(self, step: int, state: Callable[[], dict[str, Any]], *, epoch_begins: bool = False) -> None:
        """Let replacements of lost workers join here, with the state that `state` returns.

        There is a join point after every step of the run, and one more at the beginning of each epoch.
        """

    def waited_and_communicated(self) -> tuple[float, float]:
        """Return the seconds that this worker has spent waiting and communicating so far."""
        parts = (self.transport, self.gradient_transport, self.exchange_memory, self.group)
        used = [part for part in parts if part is not None]
        return sum(part.wait_seconds for part in used), sum(part.communicate_seconds for part in used)


def single_worker_channels(
    numel: int,
    device: torch.device,
    strategy: Strategy | None = None,
    dtype: torch.dtype = torch.float32,
    vector_rows: tuple[int, int] | None = None,
) -> Channels:
    """Return the channels of a single worker; it sends no gradients, and only few strategies need a center."""
    transport, gradients = (SingleWorkerTransport(count, dtype, device) for count in (numel, 1))
    if vector_rows is not None:
        memory = VectorMemory.create(numel, *vector_rows, dtype)
        memory.close()  # the memory stays mapped here, and no other process needs it
        return Channels(transport, gradients, vector_memory=memory)
    if strategy is None or not strategy.asynchronous:
        return Channels(transport, gradients)
    rows = torch.zeros(CENTER_ROWS, numel if strategy.has_center else 0, dtype=dtype, device=device)
    locks = [nullcontext() for _ in range(1 + strategy.center_parts)]
    return Channels(transport, gradients, ExchangeMemory(rows, transport.buffer[None], [0.0, 0.0], locks))


class StackedTransport(SingleWorkerTransport):
    """The transport of replicas stacked in one matrix of one worker: a round multiplies it by the strategy's matrix."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__(0)
        self.size = len(matrix)
        self.buffer = matrix
        self._matrices: dict[tuple[int, tuple[float, ...]], tuple[Round, Tensor]] = {}

    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:
        matrix = self._matrix(round_, tuple(samples or ()))
        if round_.is_exact:  # all rows of M are equal
            self.buffer.copy_(product(matrix[:1], self.buffer).expand_as(self.buffer))
        else:
            self.buffer.copy_(product(matrix, self.buffer))

    def _matrix(self, round_: Round, samples: tuple[float, ...]) -> Tensor:
        key = id(round_), samples  # by identity: comparing a thousand sources costs more than mixing them
        if key not in self._matrices:
            if len(self._matrices) >= MATRICES_KEPT:
                self._matrices.clear()
            self._matrices[key] = round_, torch.as_tensor(round_.matrix(list(samples) or None)).to(self.buffer)
        return self._matrices[key][1]


class SharedChannels:
    """The shared memory of all workers' channels: created by the process that starts them, opened by each worker."""

    def __init__(
        self,
        workers: int,
        numel: int,
        *,
        strategy: Strategy,
        gradient_numel: int = 0,
        dtype: torch.dtype = torch.float32,
        vector_rows: tuple[int, int] | None = None,
    ) -> None:
        """Create the memory.

        `gradient_numel` is the number of elements in a round of gradients or of the optimizer's state, 0 if there are
        no such rounds. `vector_rows` are the rows and portions of an optimizer with joint steps of all workers.
        """
        self.workers = workers
        self._segments = {
            "states": Segment.create(workers, numel, dtype),
            "gradients": Segment.create(workers, max(1, gradient_numel), dtype),
        }
        if strategy.asynchronous:
            rows = max(CENTER_ROWS, -(-(workers + 1) // MAILBOX))  # of weights, and of the versions of all replicas
            self._segments["center"] = Segment.create(rows, numel if strategy.has_center else 1, dtype)
        if vector_rows is not None:
            memory = VectorMemory.create(numel, *vector_rows, dtype)
            self._segments |= {"vectors": memory.vectors, "board": memory.board}
        self.servers = strategy.center_parts
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

        If several workers share a process, they wait with `until`, and `lock` replaces all locks. `make` creates the
        channels from the fields.
        """

        def check(_: float) -> None:
            waiting()

        # No timeout here: the process that started the workers decides how long they may take.
        timeout = math.inf
        if not self._attached:
            self._attached = {kind: Segment.attach(name) for kind, name in self.names.items()}
        return make(
            SharedMemoryTransport(self._attached["states"], rank, timeout, until=until, check=check),
            SharedMemoryTransport(self._attached["gradients"], rank, timeout, until=until, check=check),
            self._exchange_memory(lock) if "center" in self._attached else None,
            vector_memory=(
                VectorMemory(self._attached["vectors"], self._attached["board"]) if "board" in self._attached else None
            ),
        )

    def _exchange_memory(self, lock: AbstractContextManager[Any] | None) -> ExchangeMemory:
        center, replicas = self._attached["center"], self._attached["states"].buffers
        count = self.workers + self.servers
        return ExchangeMemory(
            torch.from_numpy(center.buffers[:CENTER_ROWS]),
            torch.from_numpy(replicas),
            center.mailboxes.reshape(-1),
            [center.lock(number) if lock is None else lock for number in range(count)],
        )

    def ask_for(self, membership: int) -> None:
        """Make all workers with a different membership pause, see `ElasticChannels`."""
        for segment in self._segments.values():
            segment.membership = membership

    def stop(self, reason: StopReason, rank: int) -> None:
        """Make all workers that wait for others stop with an error."""
        for segment in self._segments.values():
            segment.stop(reason, rank)

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "workers": self.workers,
            "servers": self.servers,
            "_attached": {},
        }
