"""Many replicas of one network that step together on one device, each with its own weights and optimizer."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, zip_longest
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.common.imports import user_frames
from tenfold.data import Part, SubsetPart, Tensors, batch_sizes
from tenfold.data.part import select_rows, tree_leaves, tree_map
from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Training
from tenfold.machine.devices import supports_graphs, synchronize
from tenfold.models import find_tensor_hook
from tenfold.training.flat import moments_to_variances, variances_to_moments
from tenfold.training.measures import AlignedMeasure, Measure, describe_failure, loss_divisor
from tenfold.training.optimizers import make_optimizer
from tenfold.training.randomness import seed_everything
from tenfold.training.replica import Seed, TrainedState, Visits, describe_slow_steps
from tenfold.training.schedules import LrSchedule
from tenfold.training.stack import Stack, capture, free_memory, groups_for_memory, peak_memory
from tenfold.training.stacked_optimizers import (
    GRADIENT_METHODS,
    Compiled,
    GradientMethod,
    Loop,
    StackedOptimizer,
    make_rule,
    stack_rules,
)

Shape = tuple[int, int, int]
"""First replica, last + 1, samples in a batch."""
CapturedStep = Callable[[Tensor], Tensor]

MOST_BRANCHES = 64
"""Beyond this many replicas, a CUDA graph with a branch for each takes longer to capture than it saves."""
WORTH_CAPTURING = 8
"""The fewest steps of one shape for which capturing them pays."""
PROBE_STEPS = 5
COMPILE_SECONDS = 15.0
"""What compiling a step takes, about."""
COMPILED_SAVING = 0.3
"""The share of a step's time that compiling it is expected to save."""


class StackedReplicas:
    """k replicas that step together. All start as copies of `network`, which becomes the first of them.

    `step` takes the sample numbers of k batches of one size, and returns k losses. Where batches differ in size,
    `learn` steps some rows at a time.
    """

    def __init__(
        self,
        network: nn.Module,
        k: int,
        training: Training,
        loss: Measure,
        part: Tensors,
        *,
        lr_schedule: LrSchedule,
        matrix: Tensor | None = None,
        method: str = "auto",
        gradients_only: bool = False,
        own: Sequence[tuple[Training, float]] = (),
    ) -> None:
        """Stack the replicas; `own` are the settings and the base learning rate of each, where these differ."""
        make_optimizer(training, network, lr_schedule.base)  # raises an error if the options are wrong
        if name := find_tensor_hook(network):
            raise ExperimentError(
                f"the parameter {name} has hooks of its own, which replicas that step together on one device do not "
                'call; set machine.engine to "serial" or "processes", or register hooks of modules'
            )
        self._divisor = loss.divisor if isinstance(loss, AlignedMeasure) else loss_divisor(loss)
        if training.accumulate > 1 and self._divisor is None:
            raise ExperimentError(
                f"training.accumulate = {training.accumulate}: replicas that step together on one device accumulate "
                'gradients of torch\'s losses only; set it to 1, or parallel.fold_mode to "fold-by-fold"'
            )
        network.train()
        for layer in network.modules():
            if getattr(layer, "sparse", False) is True:
                layer.sparse = False  # type: ignore[assignment]  # gradients are rows of one dense matrix
        self.k = k
        self.training = training
        self.loss = loss
        self.part = part
        self.stack = Stack(network, k, matrix)
        weights = self.stack.matrix[:, : self.stack.parameters]
        rules = [make_rule(settings, network, base) for settings, base in own or [(training, lr_schedule.base)]]
        self.optimizer = StackedOptimizer(
            stack_rules(rules, weights), weights, self.stack.trainable_parameters, training.clip
        )
        self._own_lr = [base / lr_schedule.base for _, base in own] or [1.0] * k
        """The learning rate of each replica, in units of the schedule's."""
        self._lr_factors = torch.tensor(self._own_lr, dtype=weights.dtype, device=weights.device).unsqueeze(1)
        self.lr_schedule = lr_schedule
        self.steps = 0
        self.gradients_only = gradients_only
        """Whether `learn` only computes gradients; the caller averages them and then calls `optimizer.step`."""
        self.at_once = k
        """The replicas whose activations are in memory at the same time."""
        self.description = ""
        """How the replicas step and why, in one sentence; "" before `prepare`."""
        self.failure = ""
        """Why a step fails with every method, if `prepare` found that."""
        arguments = (self.stack, loss, self.optimizer.gradient, training.precision)
        names = ["vmap", "loop"] if method == "auto" else [method]
        if training.compile and supports_graphs(self.device):
            names.append("compiled")
        self._methods: dict[str, GradientMethod] = {name: GRADIENT_METHODS[name](*arguments) for name in names}
        self.method = self._methods[method if method != "auto" else "loop"]
        self._captured: dict[Shape, CapturedStep] = {}

    @property
    def device(self) -> torch.device:
        """The device of the replicas."""
        return self.stack.matrix.device

    def step(self, indices: Tensor) -> Tensor:
        """Step every replica on its batch, given by sample numbers [k, batch]; return the losses before the step."""
        self.begin_step()
        return self.learn(indices, slice(0, self.k))

    def begin_step(self) -> None:
        """Set the learning rates of the next step, and count the step."""
        torch.mul(self._lr_factors, self.lr, out=self.optimizer.lr)
        self.steps += 1

    @property
    def lr(self) -> float:
        """The learning rate of the next step, of the first replica."""
        return self.lr_schedule.at(self.steps)

    def last_lr(self, row: int) -> float:
        """Return the learning rate of a replica's last step."""
        return self.lr_schedule.at(self.steps - 1) * self._own_lr[row]

    def learn(self, indices: Tensor, rows: slice) -> Tensor:
        """Step some replicas on batches of one size; return their losses."""
        captured = self._captured.get((rows.start, rows.stop, indices.shape[1]))
        return captured(indices) if captured is not None else self._learn(indices, rows)

    def _learn(self, indices: Tensor, rows: slice) -> Tensor:
        losses = torch.empty(len(indices), dtype=self.stack.matrix.dtype, device=self.device)
        for start in range(rows.start, rows.stop, self.at_once):
            some = slice(start, min(rows.stop, start + self.at_once))
            own = slice(some.start - rows.start, some.stop - rows.start)
            numbers = indices[own].reshape(-1)
            shape = (some.stop - some.start, indices.shape[1])
            x, y = (
                tree_map(lambda of: of.index_select(0, numbers).view(*shape, *of.shape[1:]), tree)  # noqa: B023
                for tree in (self.part.x, self.part.y)
            )
            self._compute_gradients(x, y, some, losses[own])
        if not self.gradients_only:
            self.optimizer.step(rows)
        return losses

    def _compute_gradients(self, x: Any, y: Any, rows: slice, losses: Tensor) -> None:
        """Compute the gradients of some rows: of a batch at once, or in pieces that add up to it."""
        size = tree_leaves(y)[0].shape[1]
        pieces = min(self.training.accumulate, size)
        if pieces == 1:
            self.method.gradients(x, y, rows, losses)
            return
        gradient, whole = self.optimizer.gradient[rows], self._divisors(y)
        total, loss = torch.zeros_like(gradient), torch.zeros_like(losses)
        for piece in torch.arange(size).tensor_split(pieces):
            part = slice(int(piece[0]), int(piece[-1]) + 1)
            of_piece = tree_map(lambda of: of[:, part], y)  # noqa: B023
            self.method.gradients(tree_map(lambda of: of[:, part], x), of_piece, rows, losses)  # noqa: B023
            share = self._divisors(of_piece) / whole
            total += torch.where(share > 0, gradient * share, 0.0)
            loss += torch.where(share > 0, losses.unsqueeze(1) * share, 0.0).squeeze(1)
        gradient.copy_(total)
        losses.copy_(loss)

    def _divisors(self, y: Any) -> Tensor:
        """Return what the loss of each row divides by, as a column: usually its samples, or its labels."""
        assert self._divisor is not None
        rows = [self._divisor(tree_map(lambda of: of[row], y)) for row in range(len(tree_leaves(y)[0]))]  # noqa: B023
        return (
            torch.stack([torch.as_tensor(row, device=self.device) for row in rows]).to(self.stack.matrix).unsqueeze(1)
        )

    @property
    def has_own_generators(self) -> bool:
        """Whether each replica has its own random generator."""
        return isinstance(self.method, Loop) and self.device.type == "cpu"

    def seed(self, states: list[Tensor]) -> None:
        """Set the state of each replica's random generator, if they have their own."""
        if isinstance(self.method, Loop) and self.has_own_generators:
            self.method.rng_states = states

    def state(self, row: int) -> dict[str, Any]:
        """Return one replica's state_dict, as copies."""
        return self.stack.state(row)

    def load(self, row: int, state: dict[str, Any]) -> None:
        """Load one replica's state_dict."""
        self.stack.load(row, state)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by name, as a checkpoint stores them."""
        return self.stack.tensors() | self.optimizer.tensors()

    def prepare(self, shapes: Mapping[Shape, int]) -> str:
        """Measure which method is faster, and capture steps of the shapes that occur often; `shapes` has their counts.

        On a GPU, a step of each shape is done once, as kernels are loaded when they are first used. The replicas are
        left unchanged. Returns why steps could not be captured, or "".
        """
        usual = max(shapes, key=lambda shape: (shapes[shape], shape[1] - shape[0]))
        seconds: dict[str, float | None] = {}
        failures: dict[str, str] = {}
        captured: dict[str, dict[Shape, CapturedStep]] = {}
        reason = ""
        with self._unchanged():
            self._fit(usual[2])
            for name in self._methods:
                if not self._is_left_out(name, seconds, sum(shapes.values())):
                    seconds[name] = self._probe(name, usual, failures)
                    captured[name] = self._captured
            works = {name: time for name, time in seconds.items() if time is not None}
            if not works:
                self.failure = list(failures.values())[-1]  # that of the simplest method
                return ""
            best = min(works, key=works.__getitem__)
            self.method, self._captured = self._methods[best], captured.pop(best)
            captured.clear()
            if supports_graphs(self.device):
                for shape, count in shapes.items():
                    if count >= WORTH_CAPTURING and shape not in self._captured and not reason:
                        reason = self._capture(shape)
                    with suppress(Exception):  # the first real step raises it again
                        losses = self.learn(self._example(shape), slice(*shape[:2]))
                        torch.stack([losses, losses]).tolist()  # as losses are logged
        synchronize(self.device)
        self.description = _describe(self.k, best, seconds, failures, self.at_once)
        return reason

    def _fit(self, size: int) -> None:
        """Find how many replicas' activations fit on the device at once."""
        try:
            each = peak_memory(lambda: self._learn(self._example((0, 1, size)), slice(0, 1)), self.device)
        except Exception:  # the first real step raises it again
            return
        if each:
            groups = groups_for_memory(self.k, each, free_memory(self.device))
            self.at_once = min(self.at_once, max(map(len, groups)))

    def _is_left_out(self, name: str, seconds: dict[str, float | None], steps: int) -> bool:
        """Return whether a method is not worth trying, after those of which the seconds of a step are known."""
        measured = [time for time in seconds.values() if time is not None]
        if name != "vmap" and supports_graphs(self.device) and self.k > MOST_BRANCHES:
            return seconds.get("vmap") is not None
        if name != "compiled":
            return False
        is_long = bool(measured) and min(measured) * steps * COMPILED_SAVING > COMPILE_SECONDS
        return not measured or (self.training.compile == "auto" and not is_long)

    def _example(self, shape: Shape) -> Tensor:
        start, stop, size = shape
        numbers = torch.arange((stop - start) * size, device=self.device) % len(self.part)
        return numbers.view(stop - start, size)

    def _probe(self, name: str, shape: Shape, failures: dict[str, str]) -> float | None:
        """Return the seconds of a step with this method, or None if it fails."""
        self.method, self._captured = self._methods[name], {}
        if isinstance(self.method, Compiled):
            self.method.size = shape[2]
        rows, example = slice(*shape[:2]), self._example(shape)
        try:
            self._learn(example, rows)
            if len(self._methods) == 1:
                return 0.0
            if supports_graphs(self.device):
                self._capture(shape)
            self.learn(example, rows)
            synchronize(self.device)
            began = perf_counter()
            for _ in range(PROBE_STEPS):
                self.learn(example, rows)
            synchronize(self.device)
            return (perf_counter() - began) / PROBE_STEPS
        except Exception as error:  # a user's network may raise anything
            failures[name] = describe_failure(error).partition("\n")[0] + user_frames(error)
            return None

    def _capture(self, shape: Shape) -> str:
        """Capture steps of this shape; return why that failed, or ""."""
        rows = slice(*shape[:2])
        try:
            self._captured[shape] = capture(lambda indices: self._learn(indices, rows), self._example(shape))
        except Exception as error:  # torch has no error class for what cannot be captured
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return ""

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore weights, optimizers and random generators at the end."""
        own = self.tensors()
        before = {name: tensor.clone() for name, tensor in own.items()}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            try:
                yield
            finally:
                for name, tensor in own.items():
                    tensor.copy_(before[name])


class Lockstep:
    """Steps stacked replicas through an epoch, whatever the sizes of their shards.

    Neighboring rows whose batches have the same size step at once, so that a step costs the same Python code for any
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
        self._last = (-1, 0)
        self._losses = torch.empty(0)
        self._is_prepared = False
        self.owners: dict[int, ReplicaRows] = {}
        """Who trains each row."""

    def prepare(self, epochs: int) -> str:
        """Choose how the replicas step, and capture steps where that pays; return why that is not possible, or ""."""
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
        """Set the seeds and the sample numbers of some rows for the epoch whose first step comes next."""
        self._seeds[rows], self._orders[rows] = seeds, orders

    def learn(self, epoch: int, step: int) -> Tensor:
        """Return the losses of all rows in this step, counted from 1; it is taken when it is first asked for.

        No device is waited for.
        """
        if (epoch, step) == self._last:
            return self._losses
        if step == 1:
            self._begin_epoch()
        self._last = epoch, step
        self.stacked.begin_step()
        start, turn = (step - 1) * self.batch_size, self.turns[step - 1]
        losses = [(rows, self.stacked.learn(self._table[rows, start : start + size], rows)) for rows, size in turn]
        if len(losses) == 1 and len(losses[0][1]) == self.stacked.k:
            self._losses = losses[0][1]
        else:
            self._losses = torch.zeros(self.stacked.k, dtype=losses[0][1].dtype, device=self.stacked.device)
            for rows, values in losses:
                self._losses[rows] = values
        return self._losses

    def batch(self, step: int) -> tuple[Any, Any]:
        """Return the samples and targets of one row in this step."""
        rows, size = self.turns[step - 1][0]
        start = (step - 1) * self.batch_size
        numbers = self._table[rows.start, start : start + size]
        return select_rows(self.stacked.part.x, numbers), select_rows(self.stacked.part.y, numbers)

    def _begin_epoch(self) -> None:
        """Give each replica the random generator it would have alone, as far as the method of stepping allows."""
        states = []
        for seed in self._seeds if self.stacked.has_own_generators else []:
            seed_everything(*seed)
            states.append(torch.get_rng_state())
        self.stacked.seed(states)
        seed_everything(*max(self._seeds, key=lambda seed: seed[1]))  # rows that have ended keep an older one
        self._table = nn.utils.rnn.pad_sequence(self._orders, batch_first=True).to(self.stacked.device)


def _equal_runs(sizes: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield the rows that lie side by side and have batches of one size, with that size."""
    start = 0
    for size, members in groupby(sizes):
        stop = start + len(list(members))
        if size:
            yield slice(start, stop), size
        start = stop


class ReplicaRows(TrainedState):
    """Some rows of stacked replicas, which average with each other: a worker trains them as another trains a `Replica`.

    The rows of several workers, such as those of several folds, step together.
    """

    timed_by_step = False

    def __init__(self, lockstep: Lockstep, rows: slice) -> None:
        self.lockstep = lockstep
        self.stacked = lockstep.stacked
        self.rows = rows
        super().__init__(self.stacked.training, self.stacked.stack.matrix[rows])
        self.k = len(self.vector)
        self.weights = self.stacked.optimizer.weights[rows]
        """The parameters of each replica."""
        self.lr_schedule = self.stacked.lr_schedule
        self._seeds: Sequence[Seed] = ()
        lockstep.owners |= dict.fromkeys(range(rows.start, rows.stop), self)
        stack = self.stacked.stack
        self._statistics = [(mean[rows], variance[rows]) for mean, variance in stack.statistics]
        self.references = stack.reference_means if self.k == stack.k else []
        """The reference means of batch normalization; those of some rows are the means of their running means."""

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
        """How the replicas step and why."""
        return self.stacked.description

    def prepare(self, _sizes: Mapping[int, int]) -> str:
        """Prepare the steps of all rows; return what is not possible, or ""."""
        why = self.lockstep.prepare(self.training.epochs)
        return why and describe_slow_steps(why)

    def begin_epoch(self, seeds: Sequence[Seed]) -> None:
        """Set the seeds of the replicas; the generators are seeded when the rows of all workers begin the epoch."""
        self._seeds = seeds

    def batches(self, visits: Sequence[Visits], batch_size: int) -> Iterator[tuple[Any, Any]]:
        """Yield the number of each step, from 1."""
        orders = [resident_order(part, order, self.stacked.device) for part, order in visits]
        self.lockstep.set_epoch(self.rows, self._seeds, orders)
        return ((step, None) for step in range(1, -(-max(map(len, orders)) // batch_size) + 1))

    def batch(self, x: Any, _y: Any) -> tuple[Any, Any]:
        """Return the samples and targets of one replica in a step."""
        return self.lockstep.batch(x)

    def find_replaced(self, *, memory: bool) -> str:  # noqa: ARG002
        """Return "": the tensors of a row are set before each use."""
        return ""

    def step(self, x: Any, y: Any) -> Tensor:
        """Take step number x, with the other rows, and return the losses."""
        self.begin_step()
        return self.backward(x, y)

    def begin_step(self) -> None:
        """Count a step; the learning rate is that of all rows."""
        self.steps += 1

    def backward(self, x: Any, _y: Any) -> Tensor:
        """Compute the gradients of step number x, with those of the other rows, and return the losses."""
        return self.lockstep.learn(self._seeds[0][1], x)[self.rows]

    def keep(self, outputs: Any, targets: Tensor) -> None:
        """Keep the outputs of one replica, to count how many are correct."""
        if self.accuracy is not None:
            self.accuracy.keep(outputs, targets)

    def densify(self) -> None:
        """Do nothing: gradients are rows of a dense matrix."""

    def clip(self) -> None:
        """Do nothing: `update` clips."""

    def update(self) -> None:
        """Let the optimizers step along the gradients."""
        self.stacked.optimizer.step(self.rows)

    def variances_to_moments(self) -> None:
        """Replace the running variances by second moments, before a round."""
        if self.k < self.stacked.k:
            self.references = [mean.mean(0) for mean, _ in self._statistics]
        variances_to_moments(self._statistics, self.references)

    def moments_to_variances(self, *, replicas_are_equal: bool) -> None:
        """Restore the variances, after a round; `replicas_are_equal` says that it has made all replicas the same."""
        moments_to_variances(self._statistics, self.references)
        if replicas_are_equal:
            for (mean, _), reference in zip(self._statistics, self.references, strict=True):
                reference.copy_(mean[0])

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs; only all rows together can be resumed."""
        ema = {"ema": self.ema_weights} if self.ema_weights is not None else {}
        return {"replicas": self.stacked.tensors(), "steps": self.steps, **ema, **self.lr_schedule.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        own = self.stacked.tensors()
        for name, tensor in state["replicas"].items():
            own[name].copy_(tensor)
        if self.ema_weights is not None:
            self.ema_weights.copy_(state["ema"])
        self.steps = self.stacked.steps = state["steps"]
        self.lr_schedule.load(state)


def resident(part: Part) -> tuple[Tensors, Tensor | None] | None:
    """Return the tensors that hold a part and its sample numbers in them (None: all); None if no tensors hold it."""
    if isinstance(part, Tensors):
        return part, None
    if isinstance(part, SubsetPart) and isinstance(part.part, Tensors):
        return part.part, part.indices.to(part.part.device)
    return None


def resident_order(part: Part, order: Tensor, device: torch.device) -> Tensor:
    """Return the numbers, among the samples on the device, of a part's samples in this order."""
    whole = resident(part)
    assert whole is not None, "the data are not on the device"
    order = order.to(device)
    return order if whole[1] is None else whole[1].index_select(0, order)


def _describe(k: int, best: str, seconds: dict[str, float | None], failures: dict[str, str], at_once: int) -> str:
    others = [
        f"{name} {time * 1e3:.2g} ms" if time is not None else f"{name} fails ({failures[name].partition(chr(10))[0]})"
        for name, time in seconds.items()
    ]
    why = f" (one step: {', '.join(others)})" if len(seconds) > 1 else ""
    groups = f", {at_once} at a time to fit into memory" if at_once < k else ""
    if k == 1:
        return f"steps are {'' if best == 'compiled' else 'not '}compiled{why}" if "compiled" in seconds else ""
    return f"{k} replicas step together by {best}{why}{groups}"
