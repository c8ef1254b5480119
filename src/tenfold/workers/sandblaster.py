"""Sandblaster (Dean et al. 2012): L-BFGS whose vectors and batches are divided among the workers.

Worker 0 is also the coordinator: it writes commands (`training/lbfgs.py`) to a board in shared memory. To `evaluate`
the loss, the batch is cut into portions, many per worker, and free workers claim them; a second worker repeats a
portion that takes long. To `combine` vectors, each worker has blocks of them, and the coordinator takes over late
blocks. Gradients are added in the order of portions and dot products in the order of blocks, so the result does not
depend on the worker that computed a part: a slow or lost worker costs only time, and any number of workers compute the
same bits with the same number of portions.

No value is overwritten by a late result: a worker publishes a result only if its command is still the current one, and
it checks this while it holds the lock that the next writer needs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, islice
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenfold.data import batches, order
from tenfold.training import Replica
from tenfold.training.lbfgs import (
    DIRECTION,
    Combined,
    LbfgsCoordinator,
    LbfgsState,
    SandblasterLBFGS,
    Sums,
    Vectors,
)
from tenfold.training.randomness import seed_everything
from tenfold.workers.channels import LOSSES, MOST_BLOCKS, RESULTS, Channels, Command
from tenfold.workers.task import Task
from tenfold.workers.trainers import Trainer

BLOCK_NUMEL = 1 << 13
"""Shorter vectors are not worth dividing."""
LATE_FACTOR, LATE_BLOCK_S = 2.0, 0.005
"""A portion is late after this multiple of what another one took, a block after this time."""
EVALUATE, COMBINE, OVER = range(3)


class SandblasterTrainer(Trainer):
    """One worker's part in the iterations; the first worker is also the coordinator."""

    replica: Replica
    bytes_moved: float = 0.0

    def __init__(self, task: Task, replica: Replica, channels: Channels, mark: Callable[[], None], seeds: bool) -> None:
        """`mark` is called after every portion.

        `seeds` says whether a portion may draw random numbers; if not, it also does not change its samples.
        """
        rows = task.vector_rows
        assert channels.vector_memory is not None
        assert rows is not None
        assert isinstance(replica.optimizer, SandblasterLBFGS)
        self.task, self.replica, self.channels = task, replica, channels
        self.memory, self.transport = channels.vector_memory, channels.transport
        self.options = replica.optimizer.options
        self.rows, self.portions = rows
        self.parameters = replica.flat.parameters
        self.blocks = max(1, min(MOST_BLOCKS, self.parameters // BLOCK_NUMEL))
        self.cuts = [self.parameters * block // self.blocks for block in range(self.blocks + 1)]
        self.vectors = torch.from_numpy(self.memory.vectors.buffers)[:, : self.parameters]
        self._mark, self._seeds = mark, seeds
        self._batch = self._all_samples = torch.arange(len(task.splits.train))
        self._samples, self._portions = -1, self._batch.tensor_split(self.portions)
        """How many samples of the batch are used (0: all), and the sample numbers of each portion."""
        self._computed: tuple[Any, Any] | None = None
        self._portion = -1
        """The samples and the number of the portion that was computed last; -1 if the portions have changed since."""
        self._portion_seconds = 0.0

    def batches(self, task: Task, _replicas: Sequence[int], epoch: int, done: int) -> Iterator[tuple[Any, Any]]:
        """Yield the sample indices of each step, for all workers together."""
        training = task.experiment.training
        if task.steps_per_epoch > 1:
            visits = [
                batches(task.visits(worker, epoch)[1], training.samples_per_step) for worker in range(task.workers)
            ]
            for step in range(done, task.steps_per_epoch):
                yield torch.cat([each[step] for each in visits if step < len(each)]), None
        elif not done:  # all samples, in an order independent of the number of workers
            numbers = self._all_samples
            yield order(numbers.numpy(), training.seed, epoch, 0) if self.options["growth"] else numbers, None

    def train_step(self, x: Any, _y: Any, _sizes: Sequence[int]) -> Tensor | None:
        """Carry out one iteration on the samples x together with all workers, and return the loss before it."""
        self.replica.begin_step()
        step = self.replica.steps
        if x is not self._batch:
            self._batch, self._samples = x, -1
        self.channels.repeat(partial(self._iterate, step))
        self.use_mean_of_replicas()
        return torch.tensor(self.memory.board.buffers[LOSSES, step % self.memory.board.numel])

    def _iterate(self, step: int) -> None:
        """Coordinate the iteration, or carry out commands until it is over."""
        if self.transport.rank:
            self._serve(step)
            return
        state = self.memory.state()
        if state is None:
            self.vectors[0].copy_(self.replica.flat.vector[: self.parameters])
            self.memory.commit(state := LbfgsCoordinator(_Shards(self, step), self.options).state)
        if state.iterations < step:
            coordinator = LbfgsCoordinator(_Shards(self, step), self.options | {"lr": self.replica.lr}, state)
            loss = coordinator.iterate(same_batch=self.task.steps_per_epoch == 1, all_samples=len(self._batch))
            self.memory.commit(state, loss)
        self.memory.issue(step, OVER)

    def _serve(self, step: int) -> None:
        """Carry out commands until the step is over."""
        while True:
            command = self.memory.read()
            if command is not None and command.step == step and command.kind != OVER:
                self.work(command)
            elif command is not None and command.step >= step:
                return
            number = command.number if command is not None else 0
            self._wait(lambda number=number: self.memory.number not in (number, -number - 1))  # type: ignore[misc]

    def work(self, command: Command) -> None:
        if command.kind == EVALUATE:
            self._evaluate(command)
            return
        for block in range(self.blocks):
            if block * self.transport.size // self.blocks == self.transport.rank:
                self._combine_block(command, block)

    def _evaluate(self, command: Command) -> None:
        """Compute portions until none is left, then repeat late ones."""
        x, t, samples = int(command.numbers[0]), command.numbers[1], int(command.numbers[2])
        here = self.replica.flat.vector[: self.parameters]
        torch.add(self.vectors[x], self.vectors[DIRECTION], alpha=t, out=here) if t else here.copy_(self.vectors[x])
        if self._samples != samples:
            batch = self._batch[torch.linspace(0, len(self._batch) - 1, samples).long()] if samples else self._batch
            self._samples, self._portions, self._portion = samples, batch.tensor_split(self.portions), -1
        if self.transport.size > 1:  # a gradient to the blocks, and its blocks of the weights to the other workers
            self.bytes_moved += here.nbytes * (2 - 1 / self.transport.size)
        while (portion := self._claim(command)) is not None:
            self._compute(command, portion)
        late = perf_counter() + LATE_FACTOR * self._portion_seconds
        self._wait(lambda: self._portion_without_result(command) is None or perf_counter() > late)
        while (portion := self._portion_without_result(command)) is not None:
            self._compute(command, portion)

    def _claim(self, command: Command) -> int | None:
        """Claim a portion that no other worker has claimed, preferably one whose samples are here."""
        vectors = self.memory.vectors
        with self.memory.lock(vectors, 0):
            for portion in chain([max(0, self._portion)], range(self.portions)):
                at = vectors.pid_at(self.rows + portion)
                if vectors.words[at] != command.number and self.memory.number == command.number:
                    vectors.words[at] = command.number
                    return portion
        return None

    def _portion_without_result(self, command: Command) -> int | None:
        """Return a portion without a result; None if there is none, or the command is no longer the current one."""
        words, at = self.memory.vectors.words, self.memory.vectors.counter_at
        if self.memory.number != command.number:
            return None
        left = (portion for portion in range(self.portions) if words[at(self.rows + portion)] != command.number)
        return next(left, None)

    def _compute(self, command: Command, portion: int) -> None:
        """Compute loss and gradient of a portion, and publish them unless another worker already has."""
        began, replica, row = perf_counter(), self.replica, self.rows + portion
        loss, size, samples = 0.0, 0.0, self._portions[portion]
        if len(samples):
            if self._seeds:
                seed_everything(self.task.experiment.training.seed, command.step, portion)
            if self._computed is None or self._seeds or portion != self._portion:
                [self._computed] = self.task.splits.train.batches([samples])
            self._portion, (x, y) = portion, self._computed
            divisor = getattr(replica.loss, "divisor", None)
            size = float(divisor(y)) if divisor is not None else float(len(samples))
            if size:
                loss = float(replica.backward(x, y))
        memory = self.memory
        with memory.lock(memory.vectors, 1 + portion):
            at = memory.vectors.counter_at(row)
            if memory.number == command.number and memory.vectors.words[at] != command.number:
                if size:
                    replica.flat.add_gradients(self.vectors[row].zero_())
                memory.vectors.mailboxes[row, :2] = loss, size
                memory.vectors.words[at] = command.number
        self._portion_seconds = perf_counter() - began
        self._mark()

    def failed_batch(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the portion that was computed last."""
        return self._computed or (x, y)

    def _combine_block(self, command: Command, block: int) -> None:
        """Combine one block of rows, unless another worker already has."""
        memory, board = self.memory, self.memory.board
        at = board.counter_at(RESULTS + block)
        with memory.lock(board, block):
            if memory.number == command.number and board.words[at] != command.number:
                results = self.combine(block, *_decode(command.numbers))
                board.buffers[RESULTS + block, : len(results)] = results
                board.words[at] = command.number

    def combine(self, block: int, sums: Sums, left: Sequence[int], right: Sequence[int]) -> list[float]:
        """Combine one block of rows; return the products, the largest and the sum of the absolute values."""
        rows = self.vectors[:, self.cuts[block] : self.cuts[block + 1]]
        for out, terms in sums.items():
            total = rows[out].zero_()
            for run in _consecutive(terms):  # adjacent rows are added by one product
                scales = torch.tensor([terms[row] for row in run], dtype=rows.dtype)
                total.addmv_(rows[run[0] : run[-1] + 1].T, scales)
        first, last = min(right, default=0), max(right, default=0)
        products = []
        for row in left:  # including the rows in between is faster than copying the others
            values = rows[first : last + 1].mv(rows[row]).tolist()
            products += [values[other - first] for other in right]
        sizes = rows[left[0]].abs()
        return [*products, float(sizes.max()), float(sizes.sum())]

    def wait_for_blocks(self, command: Command) -> None:
        """Wait until all blocks are combined, and combine late ones here."""
        words, at = self.memory.board.words, self.memory.board.counter_at

        def left() -> list[int]:
            return [block for block in range(self.blocks) if words[at(RESULTS + block)] != command.number]

        late = perf_counter() + LATE_BLOCK_S
        self._wait(lambda: not left() or perf_counter() > late)
        for block in left():
            self._combine_block(command, block)

    def _wait(self, ready: Callable[[], bool]) -> None:
        began = perf_counter()
        self.transport.wait_until(ready)
        self.transport.wait_seconds += perf_counter() - began

    def average_weights_if_due(self, step: int) -> None:
        """Do nothing: all workers have the same weights."""

    def use_mean_of_replicas(self) -> None:
        """Copy the current weights of the iterations into the replica."""
        state = self.memory.state()
        if state is not None:
            self.replica.flat.vector[: self.parameters].copy_(self.vectors[state.x])

    def state(self) -> dict[str, Any]:
        """Return the vectors and the coordinator's state; the first worker saves them for all."""
        state = self.memory.state()
        if self.transport.rank or state is None:
            return {"numbers": None, "rows": None, "bytes_moved": self.bytes_moved}
        rows = torch.from_numpy(self.memory.vectors.buffers[: self.rows, : self.parameters]).clone()
        return {"numbers": torch.from_numpy(state.numbers()), "rows": rows, "bytes_moved": self.bytes_moved}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a saved state; a joining worker uses the shared one instead."""
        self.bytes_moved = state["bytes_moved"]
        if state["rows"] is not None and self.memory.state() is None:
            self.memory.vectors.buffers[: self.rows, : self.parameters] = state["rows"].numpy()
            self.memory.commit(LbfgsState.of(state["numbers"].numpy()))


class _Shards(Vectors):
    """The coordinator's view of all workers' vectors in one step."""

    def __init__(self, trainer: SandblasterTrainer, step: int) -> None:
        self.trainer, self.step = trainer, step

    def _command(self, kind: int, *numbers: float) -> Command:
        """Let all workers, including this one, carry out a command."""
        memory = self.trainer.memory
        memory.issue(self.step, kind, *numbers)
        command = memory.read()
        assert command is not None
        self.trainer.work(command)
        return command

    def evaluate(self, x: int, step: float, samples: int | None) -> tuple[float, dict[int, float]]:
        trainer = self.trainer
        self._command(EVALUATE, x, step, samples or 0)
        rows = range(trainer.rows, trainer.rows + trainer.portions)
        values = [trainer.memory.vectors.mailboxes[row, :2].tolist() for row in rows]
        whole = 1.0 if getattr(trainer.replica.loss, "is_sum", False) else sum(size for _, size in values)
        weights = {row: size / whole for row, (_, size) in zip(rows, values, strict=True) if size}
        return sum(loss * size for loss, size in values) / whole, weights

    def combine(self, sums: Sums, left: Sequence[int], right: Sequence[int]) -> Combined:
        trainer = self.trainer
        if trainer.blocks == 1:  # too short to be worth a command
            results = np.array([trainer.combine(0, sums, left, right)])
        else:
            command = self._command(COMBINE, *_encode(sums, left, right))
            trainer.wait_for_blocks(command)
            count = len(left) * len(right) + 2
            results = trainer.memory.board.buffers[RESULTS : RESULTS + trainer.blocks, :count].copy()
        products = results[:, :-2].sum(axis=0).reshape(len(left), len(right))
        return Combined(products, float(results[:, -2].max()), float(results[:, -1].sum()))


def _consecutive(rows: Iterable[int]) -> Iterator[list[int]]:
    """Yield the rows in lists of consecutive ones."""
    for _, run in groupby(enumerate(sorted(rows)), lambda place_and_row: place_and_row[1] - place_and_row[0]):
        yield [row for _, row in run]


def _encode(sums: Sums, left: Sequence[int], right: Sequence[int]) -> list[float]:
    """Return the arguments of `combine` as numbers."""
    numbers: list[float] = [len(left), *left, len(right), *right]
    for out, terms in sums.items():
        numbers += [out, len(terms), *chain.from_iterable(terms.items())]
    return numbers


def _decode(numbers: Sequence[float]) -> tuple[Sums, list[int], list[int]]:
    """Return the arguments of `combine` from the numbers of `_encode`."""
    rest = iter(numbers)
    left, right = ([int(row) for row in islice(rest, int(next(rest)))] for _ in range(2))
    sums = {int(out): {int(next(rest)): next(rest) for _ in range(int(next(rest)))} for out in rest}
    return sums, left, right
