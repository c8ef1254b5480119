"""The workers' view of stacked replicas: several that step together, or one with captured steps."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.data import Part, SubsetPart, Tensors, batch_sizes
from tenfold.data.part import select_rows
from tenfold.errors import ModelError
from tenfold.experiment import Training
from tenfold.machine.devices import supports_graphs
from tenfold.training.flat_weights import BatchNormStatistics, power_iterations
from tenfold.training.measures import Measure
from tenfold.training.randomness import seed_everything
from tenfold.training.replica import Replica, Seed, TrainedState, Visits, describe_slow_steps
from tenfold.training.stack import StackedReplicas


class Lockstep:
    """Steps stacked replicas through an epoch, with shards of any size.

    Neighboring rows with batches of the same size step together, so the Python overhead of a step is the same for any
    k. At the end of an epoch, where sizes differ, a step may take a few turns; rows without samples left are skipped.
    """

    def __init__(self, stacked: StackedReplicas, lengths: Sequence[int], batch_size: int) -> None:
        """Step through shards of these lengths, one for each row."""
        self.stacked = stacked
        self.batch_size = batch_size
        sizes = list(zip_longest(*(batch_sizes(length, batch_size) for length in lengths), fillvalue=0))
        self.turns = [list(_equal_runs(step)) for step in sizes]
        self._seeds: list[Seed] = [(0, 0, 0)] * stacked.k
        self._orders = [torch.zeros(0, dtype=torch.int64, device=stacked.device)] * stacked.k
        self._table = torch.empty(0)
        self._epoch, self._step = -1, 0
        """The epoch, and how many of its steps were taken."""
        self._losses = torch.empty(0)
        self._failure: Exception | None = None
        """Why a step failed: none can follow, of no row."""
        self._is_prepared = False
        self.owners: dict[int, ReplicaRows] = {}
        """Who trains each row."""

    def prepare(self, epochs: int) -> str:
        """Choose how the replicas step, and capture steps if worthwhile; return the reason if that fails, or ""."""
        if self._is_prepared:
            return ""
        self._is_prepared = True
        counts = Counter((rows.start, rows.stop, size) for turn in self.turns for rows, size in turn)
        why = self.stacked.prepare({shape: count * epochs for shape, count in counts.items()})
        if self.stacked.failure:
            raise ModelError(f"the model failed on its first batch: {self.stacked.failure}")
        if not supports_graphs(self.stacked.device):  # captured steps return only losses
            self.stacked.method.keep = lambda row, outputs, targets: self.owners[row].keep(outputs, targets)
        return why

    def set_epoch(self, rows: slice, seeds: Sequence[Seed], orders: Sequence[Tensor]) -> None:
        """Set the seeds and the sample indices of some rows for the next epoch."""
        self._seeds[rows], self._orders[rows] = seeds, orders

    def learn(self, epoch: int, step: int) -> Tensor:
        """Return the losses of all steps of this epoch up to this one, counted from 1, one row per step.

        Steps are taken when they are first requested, without waiting for the device.
        """
        if epoch != self._epoch:
            self._begin_epoch()
            self._epoch, self._step = epoch, 0
        while self._step < step:
            if self._failure is not None:
                raise self._failure
            try:
                self._take_step()
            except Exception as error:
                self._failure = error
                raise
        return self._losses

    def _take_step(self) -> None:
        self.stacked.begin_step()
        start, turn = self._step * self.batch_size, self.turns[self._step]
        if self.stacked.gradients_only and sum(rows.stop - rows.start for rows, _ in turn) < self.stacked.k:
            # clear the earlier gradients of rows without samples left
            self.stacked.optimizer.gradient.zero_()
        for rows, size in turn:
            self._losses[self._step, rows] = self.stacked.learn(self._table[rows, start : start + size], rows)
        self._step += 1

    def batch(self) -> tuple[Any, Any]:
        """Return the samples and targets of one row in the current step."""
        rows, size = self.turns[self._step][0]
        start = self._step * self.batch_size
        numbers = self._table[rows.start, start : start + size]
        return select_rows(self.stacked.part.x, numbers), select_rows(self.stacked.part.y, numbers)

    def _begin_epoch(self) -> None:
        """Seed each replica's random generator as if it trained alone, if the method of stepping allows it."""
        matrix = self.stacked.stack.matrix
        self._losses = torch.zeros(len(self.turns), self.stacked.k, dtype=matrix.dtype, device=matrix.device)
        states = []
        for seed in self._seeds if self.stacked.has_own_generators else []:
            seed_everything(*seed)
            states.append(torch.get_rng_state())
        self.stacked.seed(states)
        seed_everything(*max(self._seeds, key=lambda seed: seed[1]))  # finished rows keep an older seed
        self._table = nn.utils.rnn.pad_sequence(self._orders, batch_first=True).to(self.stacked.device)


def _equal_runs(sizes: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield ranges of adjacent rows with the same batch size, and the size."""
    start = 0
    for size, members in groupby(sizes):
        stop = start + len(list(members))
        if size:
            yield slice(start, stop), size
        start = stop


class SomeRowsStatistics(BatchNormStatistics):
    """The statistics of some rows of a stack; the points c are the averages of their running means."""

    def variances_to_moments(self) -> None:
        self.reference_means = [mean.mean(0) for mean, _ in self.statistics]
        super().variances_to_moments()


class ReplicaRows(TrainedState):
    """Rows of stacked replicas that average with each other; a worker trains them like a `Replica`.

    The rows of several workers, for example of several folds, step together.
    """

    timed_by_step = False

    def __init__(self, lockstep: Lockstep, rows: slice) -> None:
        self.lockstep = lockstep
        self.stacked = lockstep.stacked
        self.rows = rows
        stack = self.stacked.stack
        statistics = [(mean[rows], variance[rows]) for mean, variance in stack.statistics]
        matrix = stack.matrix[rows]
        iterations = [self._iterate_powers] if any(power_iterations(stack.network)) else []
        super().__init__(
            self.stacked.training,
            matrix,
            BatchNormStatistics(statistics, stack.reference_means, iterations)
            if len(matrix) == stack.k
            else SomeRowsStatistics(statistics, [], iterations),
        )
        self.k = len(self.vector)
        self.weights = self.stacked.optimizer.weights[rows]
        """The parameters of each replica."""
        self.lr_schedule = self.stacked.lr_schedule
        self._seeds: Sequence[Seed] = ()
        self._steps_taken = 0
        """The steps of this epoch whose losses were returned."""
        lockstep.owners |= dict.fromkeys(range(rows.start, rows.stop), self)

    def _iterate_powers(self) -> None:
        for row in range(self.rows.start, self.rows.stop):
            for iterate in power_iterations(self.stacked.stack.network_at(row)):
                iterate()

    @property
    def network(self) -> nn.Module:
        """The first of the replicas."""
        return self.stacked.stack.network_at(self.rows.start)

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        return self.stacked.last_lr(self.rows.start)

    @property
    def description(self) -> str:  # type: ignore[override]
        return self.stacked.description

    def prepare(self, _sizes: Mapping[int, int]) -> str:
        """Prepare the steps of all rows; return the problem if that fails, or ""."""
        why = self.lockstep.prepare(self.training.epochs)
        return why and describe_slow_steps(why)

    def begin_epoch(self, seeds: Sequence[Seed]) -> None:
        """Set the seeds of the replicas; the generators are seeded when all rows begin the epoch."""
        self._seeds = seeds

    def batches(self, visits: Sequence[Visits], batch_size: int) -> Iterator[tuple[Any, Any]]:
        """Yield the number of each step, from 1."""
        orders = [resident_order(part, order, self.stacked.device) for part, order in visits]
        self.lockstep.set_epoch(self.rows, self._seeds, orders)
        self._steps_taken = 0
        return ((step, None) for step in range(1, -(-max(map(len, orders)) // batch_size) + 1))

    def batch(self, _x: Any, _y: Any) -> tuple[Any, Any]:
        """Return the samples and targets of one replica in a step that failed."""
        return self.lockstep.batch()

    def find_replaced(self, *, memory: bool) -> str:  # noqa: ARG002
        """Return "": the tensors of a row are set before each use."""
        return ""

    def step(self, x: Any, y: Any) -> Tensor:
        """Take the steps up to number x, together with the other rows, and return the losses of each."""
        self.steps += x - self._steps_taken
        return self.backward(x, y)

    def begin_step(self) -> None:
        """Count a step; the learning rate is set for all rows together."""
        self.steps += 1

    def backward(self, x: Any, _y: Any) -> Tensor:
        """Compute the gradients of the steps up to number x, together with the other rows, and return the losses."""
        losses = self.lockstep.learn(self._seeds[0][1], x)[self._steps_taken : x, self.rows]
        self._steps_taken = x
        return losses

    def keep(self, outputs: Any, targets: Tensor) -> None:
        """Keep the outputs of one replica, to count correct predictions."""
        if self.accuracy is not None:
            self.accuracy.keep(outputs, targets)

    def densify(self) -> None:
        """Do nothing: gradients are rows of a dense matrix."""

    def clip(self) -> None:
        """Do nothing: `update` clips."""

    def update(self) -> None:
        """Let the optimizers step along the gradients."""
        self.stacked.optimizer.step(self.rows)

    def state(self) -> dict[str, Any]:
        """Return the state for a resumed run; all rows are resumed together."""
        return super().state() | {"replicas": self.stacked.tensors()}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        own = self.stacked.tensors()
        for name, tensor in state["replicas"].items():
            own[name].copy_(tensor)
        self.stacked.steps = self.steps


def resident(part: Part) -> tuple[Tensors, Tensor | None] | None:
    """Return the tensors of a part, and its sample indices in them (None: all); None if it is not in tensors."""
    if isinstance(part, Tensors):
        return part, None
    if isinstance(part, SubsetPart) and isinstance(part.part, Tensors):
        return part.part, part.indices.to(part.part.device)
    return None


def resident_order(part: Part, order: Tensor, device: torch.device) -> Tensor:
    """Return the indices, among the samples on the device, of a part's samples in this order."""
    whole = resident(part)
    assert whole is not None, "the data are not on the device"
    order = order.to(device)
    return order if whole[1] is None else whole[1].index_select(0, order)


# One replica whose steps are CUDA graphs: captured once, then replayed without Python or kernel launches in between.


def find_capture_obstacle(training: Training, part: Part) -> str:
    """Return why steps of this experiment cannot be captured, as the end of a sentence, or ""."""
    if training.needs_closure:
        return f"{training.optimizer} decides on the CPU when a step is over"
    if training.precision == "fp16":
        return "with fp16 it is decided on the CPU whether a step is skipped"
    if training.accumulate > 1:
        return "gradients are accumulated"
    if training.activation_checkpointing:
        return "activations are computed again, with the random numbers of the forward pass, which the CPU keeps"
    if resident(part) is None:
        scattered = hasattr(part, "x")  # tensors, but not of all samples
        unfit = "are not whole" if scattered else "are read sample by sample and do not stay"
        return f"the data {unfit} on the device"
    return ""


class Graphed(Replica):
    """A replica with captured steps and its data on the device; a batch is given by its sample indices.

    If capturing fails, the same steps run one operation after another.
    """

    def __init__(self, network: nn.Module, training: Training, loss: Measure, *, part: Part, **options: Any) -> None:
        super().__init__(network, training, loss, **options)
        resident_data = resident(part)
        assert resident_data is not None
        whole, _ = resident_data
        matrix = self.flat.vector[None]
        self.stacked = StackedReplicas(
            network, 1, training, loss, whole, lr_schedule=self.lr_schedule, matrix=matrix, method="loop"
        )

    def prepare(self, sizes: Mapping[int, int]) -> str:
        """Capture the steps for common batch sizes; return the reason if that fails, or ""."""
        why = self.stacked.prepare({(0, 1, size): count for size, count in sizes.items()})
        self.description = self.stacked.description
        return why and describe_slow_steps(why)

    def batches(self, visits: Sequence[Visits], batch_size: int) -> Iterator[tuple[Any, Any]]:
        [(part, order)] = visits
        return ((some, None) for some in torch.split(resident_order(part, order, self.stacked.device), batch_size))

    def batch(self, x: Any, y: Any) -> tuple[Any, Any]:  # noqa: ARG002
        return select_rows(self.stacked.part.x, x), self.stacked.part.y[x]

    def step(self, x: Any, y: Any) -> Tensor:  # noqa: ARG002
        self.begin_step()
        self.stacked.optimizer.lr.fill_(self.lr)
        return self.stacked.learn(x[None], slice(0, 1))[0]

    def state(self) -> dict[str, Any]:
        return super().state() | {"optimizer": self.stacked.optimizer.tensors()}

    def load(self, state: dict[str, Any]) -> None:
        own = self.stacked.optimizer.tensors()
        for name, tensor in state["optimizer"].items():
            own[name].copy_(tensor)
        super().load(state | {"optimizer": self.optimizer.state_dict()})
