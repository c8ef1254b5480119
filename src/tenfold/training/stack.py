"""Stacked replicas: rows of one matrix on a device that step together; their tensors, captured steps, and memory."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.common.imports import user_frames
from tenfold.data import Tensors
from tenfold.data.part import tree_leaves, tree_map
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.machine.devices import supports_graphs, synchronize
from tenfold.models.networks import find_tensor_hook
from tenfold.training.flat_weights import BATCH_NORMS, FlatState, floating_tensors, padded_size, view_like
from tenfold.training.measures import AlignedMeasure, Measure, describe_failure, loss_as_sums
from tenfold.training.schedules import LrSchedule
from tenfold.training.stacked_optimizers import (
    GRADIENT_METHODS,
    Compiled,
    GradientMethod,
    Loop,
    StackedOptimizer,
    make_rule,
    stack_rules,
)


def peak_memory(work: Callable[[], object], device: torch.device) -> float:
    """Run the work and return its peak memory in bytes on a GPU; return 0 without running it on other devices."""
    if device.type != "cuda":
        return 0.0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return float(torch.cuda.max_memory_allocated(device) - before)


def free_memory(device: torch.device) -> float:
    """Return the free bytes of a GPU, less a fifth as a reserve."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return 0.8 * (free + unused)


def largest_group(count: int, each: float, available: float) -> int:
    """Return how many of `count` replicas of `each` bytes to compute together, with as few groups as memory allows."""
    most = int(available // each)
    if most < 1:
        raise ExperimentError(
            f"one replica needs {each / 1e9:.1f} GB, but the device has {available / 1e9:.1f} GB free; "
            "use a smaller batch_size or model"
        )
    groups = -(-count // min(most, count))
    return -(-count // groups)


WARM_UPS = 3
"""Steps before the recording, in which libraries choose their kernels and take their memory."""


def capture(step: Callable[[Tensor], Tensor], example: Tensor) -> Callable[[Tensor], Tensor]:
    """Capture `step` for an input like the example, and return a function that replays it for other inputs.

    The step runs a few times first. All tensors that it reads and writes, except for its input, must keep their
    address.
    """
    given = example.clone()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            step(given)
        with _never_waiting():
            step(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step(given)

    def replay(values: Tensor) -> Tensor:
        given.copy_(values)
        graph.replay()
        return result.clone()

    return replay


@contextmanager
def _never_waiting() -> Iterator[None]:
    """Make operations fail that wait for the device; a failure during the capture would corrupt the generators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it a prototype, once
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Stack:
    """k replicas, one per row with the layout of `FlatState.vector`; all start equal.

    Integer buffers, such as the counters of batch normalization, are stacked separately and never mixed.
    """

    def __init__(self, network: nn.Module, k: int, matrix: Tensor | None = None) -> None:
        flat = FlatState(network, None if matrix is None else matrix[0])
        self.network = network
        """The network that all rows start as copies of; it is row 0."""
        self.k = k
        self.parameters, self.frozen = flat.parameters, flat.frozen
        """How many of the first columns are parameters, and which of them are not trained."""
        self._starts = flat.starts
        self.matrix = flat.vector.expand(k, -1).clone() if matrix is None else matrix
        self.views = {
            name: self._stacked(tensor, start, self.matrix)
            for (name, tensor), start in zip(floating_tensors(network).items(), flat.starts.values(), strict=True)
        }
        """Each floating-point tensor of all replicas, (k, *shape), as a view into the matrix."""
        self.trainable_parameters: list[slice] = []
        """The columns of trained parameters."""
        self._trained = {name: item for name, item in network.named_parameters() if item.requires_grad}
        for name, parameter in self._trained.items():
            self._learn(self._starts[name], self._starts[name] + padded_size(parameter.numel()))
        self.names = list(self._trained)
        """The names of the trained parameters."""
        self.counters = {
            name: buffer.expand(k, *buffer.shape).clone()
            for name, buffer in network.named_buffers()
            if not buffer.is_floating_point()
        }
        self.statistics = [
            (self.views[f"{name}.running_mean".lstrip(".")], self.views[f"{name}.running_var".lstrip(".")])
            for name, layer in network.named_modules()
            if isinstance(layer, BATCH_NORMS) and layer.running_mean is not None
        ]
        self.reference_means = [mean[0].clone() for mean, _ in self.statistics]
        self._show(network, 0)
        self._spare: nn.Module | None = None
        self._networks: dict[int, nn.Module] = {}

    @staticmethod
    def _stacked(tensor: Tensor, start: int, matrix: Tensor) -> Tensor:
        row = view_like(tensor, matrix[0], start)
        return matrix.as_strided((len(matrix), *row.shape), (matrix.stride(0), *row.stride()), row.storage_offset())

    def _learn(self, start: int, stop: int) -> None:
        if self.trainable_parameters and self.trainable_parameters[-1].stop == start:
            start = self.trainable_parameters.pop().start
        self.trainable_parameters.append(slice(start, stop))

    def gradient_views(self, gradient: Tensor) -> list[Tensor]:
        """Return views of a gradient matrix for the parameters in `names`."""
        return [self._stacked(item, self._starts[name], gradient) for name, item in self._trained.items()]

    def learned_columns(self) -> Tensor:
        """Return the columns of all trained elements, in the order of `reshape(-1)`."""
        places = torch.arange(self.parameters, device=self.matrix.device).unsqueeze(0)
        views = [view.reshape(-1) for view in self.gradient_views(places)]
        return torch.cat(views) if views else places[0, :0]

    def network_of(self, row: int) -> nn.Module:
        """Return a permanent network for a row; its parameters are views into the matrix."""
        if row not in self._networks:
            self._networks[row] = copy.deepcopy(self.network) if row else self.network
            self._show(self._networks[row], row)
        return self._networks[row]

    def network_at(self, row: int) -> nn.Module:
        """Return a network with the tensors of this row; the next call may reuse it."""
        if row in self._networks:
            return self._networks[row]
        if self._spare is None:
            self._spare = copy.deepcopy(self.network)
        self._show(self._spare, row)
        return self._spare

    def _show(self, network: nn.Module, row: int) -> None:
        for name, tensor in _tensors(network):
            tensor.data = (self.views if name in self.views else self.counters)[name][row]

    def write(self, row: int, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.views[name][row].copy_(tensor)

    def load(self, row: int, state: dict[str, Any]) -> None:
        self.network_at(row).load_state_dict(state)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by name."""
        references = {f"center {number}": reference for number, reference in enumerate(self.reference_means)}
        return {"weights": self.matrix, **self.counters, **references}


def _tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters()
    yield from network.named_buffers()


Shape = tuple[int, int, int]
"""First replica, last + 1, samples in a batch."""
CapturedStep = Callable[[Tensor], Tensor]

MOST_BRANCHES = 64
"""Beyond this many replicas, a CUDA graph with a branch for each takes longer to capture than it saves."""
BRANCH_SECONDS = 0.01
"""What capturing a branch takes, about: its step is done six times, of 1.8 ms on an H200."""
WORTH_CAPTURING = 8
"""The fewest steps of one shape for which capturing them pays."""
PROBE_STEPS = 5
COMPILE_SECONDS = 15.0
"""What compiling a step takes, about."""
COMPILED_SAVING = 0.3
"""The share of a step's time that compiling it is expected to save."""


def is_worth_compiling(seconds: float, steps: int) -> bool:
    """Return whether compiling is expected to pay off in a run of this many steps of `seconds` each."""
    return seconds * steps * COMPILED_SAVING > COMPILE_SECONDS


class StackedReplicas:
    """k replicas that step together. All start as copies of `network`, which becomes the first replica.

    `step` takes the sample indices of k batches of one size, and returns k losses. If batches differ in size,
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
        """Stack the replicas; `own` has the settings and the base learning rate of each, if these differ."""
        if name := find_tensor_hook(network):
            raise ExperimentError(
                f"the parameter {name} has hooks, but replicas that step together on one device do not call "
                'them; set machine.engine to "serial" or "processes", or register hooks on modules'
            )
        self._divisor = loss.divisor if isinstance(loss, AlignedMeasure) else loss_as_sums(loss)[1]
        if training.accumulate > 1 and self._divisor is None:
            raise ExperimentError(
                f"training.accumulate = {training.accumulate}: replicas that step together on one device can "
                "accumulate "
                'gradients only with torch\'s losses; set it to 1, or parallel.fold_mode to "fold-by-fold"'
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
        return self.stack.matrix.device

    def step(self, indices: Tensor) -> Tensor:
        """Step every replica on its batch, given by sample indices [k, batch]; return the losses before the step."""
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
        return self.lr_schedule.at(self.steps - 1) * self._own_lr[row]

    def learn(self, indices: Tensor, rows: slice) -> Tensor:
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
        """Compute the gradients of some rows, from the whole batch or in pieces that add up to it."""
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
        """Return the divisor of each row's loss as a column: usually the number of its samples or labels."""
        assert self._divisor is not None
        rows = [self._divisor(tree_map(lambda of: of[row], y)) for row in range(len(tree_leaves(y)[0]))]  # noqa: B023
        return (
            torch.stack([torch.as_tensor(row, device=self.device) for row in rows]).to(self.stack.matrix).unsqueeze(1)
        )

    @property
    def has_own_generators(self) -> bool:
        return isinstance(self.method, Loop) and self.device.type == "cpu"

    def seed(self, states: list[Tensor]) -> None:
        """Set the state of each replica's random generator, if replicas have their own."""
        if isinstance(self.method, Loop) and self.device.type == "cpu":
            self.method.rng_states = states

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by their name in a checkpoint."""
        return self.stack.tensors() | self.optimizer.tensors()

    def prepare(self, shapes: Mapping[Shape, int]) -> str:
        """Measure which method is faster, and capture steps of the shapes that occur often; `shapes` has their counts.

        On a GPU, one step of each shape is run, because kernels are loaded at their first use. The replicas do not
        change. Returns the reason if steps could not be captured, or "".
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
                    fastest = min((time for time in seconds.values() if time is not None), default=math.inf)
                    seconds[name] = self._probe(name, usual, failures, fastest)
                    captured[name] = self._captured
            works = {name: time for name, time in seconds.items() if time is not None}
            if not works:
                self.failure = list(failures.values())[-1]  # of the simplest method
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
        """Find the number of replicas whose activations fit on the device together."""
        try:
            each = peak_memory(lambda: self._learn(self._example((0, 1, size)), slice(0, 1)), self.device)
        except Exception:  # the first real step raises it again
            return
        if each:
            self.at_once = min(self.at_once, largest_group(self.k, each, free_memory(self.device)))

    def _is_left_out(self, name: str, seconds: dict[str, float | None], steps: int) -> bool:
        """Return whether a method is not worth trying, given the measured step times of earlier methods."""
        measured = [time for time in seconds.values() if time is not None]
        vmap_seconds = seconds.get("vmap")
        if name != "vmap" and vmap_seconds is not None and supports_graphs(self.device):
            could_save = vmap_seconds * steps
            if self.k > MOST_BRANCHES or (name == "loop" and could_save < self.k * BRANCH_SECONDS):
                return True
        if name != "compiled":
            return False
        return not measured or (self.training.compile == "auto" and not is_worth_compiling(min(measured), steps))

    def _example(self, shape: Shape) -> Tensor:
        start, stop, size = shape
        numbers = torch.arange((stop - start) * size, device=self.device) % len(self.part)
        return numbers.view(stop - start, size)

    def _probe(self, name: str, shape: Shape, failures: dict[str, str], fastest: float) -> float | None:
        """Return the seconds of a step with this method, or None if it fails.

        The measurement stops early if the method is slower than the `fastest` so far.
        """
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
            began, steps = perf_counter(), 0
            while steps < PROBE_STEPS and (self.device.type != "cpu" or perf_counter() - began < PROBE_STEPS * fastest):
                self.learn(example, rows)
                steps += 1
            synchronize(self.device)
            return (perf_counter() - began) / steps
        except Exception as error:  # a user's network may raise anything
            failures[name] = describe_failure(error).partition("\n")[0] + user_frames(error)
            return None

    def _capture(self, shape: Shape) -> str:
        """Capture steps of this shape; return the reason if that failed, or ""."""
        rows = slice(*shape[:2])
        try:
            self._captured[shape] = capture(lambda indices: self._learn(indices, rows), self._example(shape))
        except Exception as error:  # torch has no specific error class for a failed capture
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return ""

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore weights, optimizers and random generators after the block."""
        own = self.tensors()
        before = {name: tensor.clone() for name, tensor in own.items()}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            try:
                yield
            finally:
                for name, tensor in own.items():
                    tensor.copy_(before[name])


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
