"""Many replicas of one network that step together on one device, each with its own weights and optimizer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.common.imports import user_frames
from tenfold.data import Part, SubsetPart, Tensors
from tenfold.data.part import tree_map
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.machine.devices import supports_graphs, synchronize
from tenfold.models import find_tensor_hook
from tenfold.training.measures import Measure, describe_failure
from tenfold.training.optimizers import make_optimizer
from tenfold.training.schedules import LrSchedule
from tenfold.training.stack import ALL, Stack, capture, free_memory, groups_for_memory, peak_memory
from tenfold.training.stacked_optimizers import GRADIENT_METHODS, GradientMethod, Loop, StackedOptimizer, make_rule

Shape = tuple[int, int, int]
"""First replica, last + 1, samples in a batch."""
CapturedStep = Callable[[Tensor], Tensor]

MOST_BRANCHES = 64
"""Beyond this many replicas, a CUDA graph with a branch for each takes longer to capture than it saves."""
WORTH_CAPTURING = 8
"""The fewest steps of one shape for which capturing them pays."""
PROBE_STEPS = 5


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
    ) -> None:
        make_optimizer(training, network, lr_schedule.base)  # raises an error if the options are wrong
        if name := find_tensor_hook(network):
            raise ExperimentError(
                f"the parameter {name} has hooks of its own, which replicas that step together on one device do not "
                'call; set machine.engine to "serial" or "processes", or register hooks of modules'
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
        self.optimizer = StackedOptimizer(
            make_rule(training, network, lr_schedule.base), weights, self.stack.trainable_parameters, training.clip
        )
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
        self._methods: dict[str, GradientMethod] = {
            name: GRADIENT_METHODS[name](*arguments) for name in ([method] if method != "auto" else GRADIENT_METHODS)
        }
        self.method = self._methods[method if method != "auto" else "loop"]
        self._captured: dict[Shape, CapturedStep] = {}

    @property
    def device(self) -> torch.device:
        """The device of the replicas."""
        return self.stack.matrix.device

    def step(self, indices: Tensor) -> Tensor:
        """Step every replica on its batch, given by sample numbers [k, batch]; return the losses before the step."""
        self.advance()
        return self.learn(indices, slice(0, self.k))

    def advance(self) -> None:
        """Set the learning rate of the next step, and count the step."""
        self.optimizer.rate.fill_(self.rate)
        self.steps += 1

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.lr_schedule.at(self.steps)

    def learn(self, indices: Tensor, rows: slice) -> Tensor:
        """Step some replicas on batches of one size; return their losses."""
        captured = self._captured.get((rows.start, rows.stop, indices.shape[1]))
        return captured(indices) if captured is not None else self._learn(indices, rows)

    def _learn(self, indices: Tensor, rows: slice) -> Tensor:
        losses = torch.empty(len(indices), device=self.device)
        for start in range(rows.start, rows.stop, self.at_once):
            some = slice(start, min(rows.stop, start + self.at_once))
            own = slice(some.start - rows.start, some.stop - rows.start)
            numbers = indices[own].reshape(-1)
            shape = (some.stop - some.start, indices.shape[1])
            x, y = (
                tree_map(lambda of: of.index_select(0, numbers).view(*shape, *of.shape[1:]), tree)  # noqa: B023
                for tree in (self.part.x, self.part.y)
            )
            self.method.gradients(x, y, some, losses[own])
        if not self.gradients_only:
            self.optimizer.step(rows)
        return losses

    def mix(self, matrix: Tensor, *, replicas_are_equal: bool = False, rows: slice = ALL) -> None:
        """Multiply the states of all replicas or some by a matrix; `replicas_are_equal`: it makes them the same."""
        self.stack.mix(matrix, replicas_are_equal=replicas_are_equal, rows=rows)

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
                if not self._is_too_slow(name, seconds):
                    seconds[name] = self._probe(name, usual, failures)
                    captured[name] = self._captured
            works = {name: time for name, time in seconds.items() if time is not None}
            if not works:
                self.failure = failures[name]  # that of the last and simplest method
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

    def _is_too_slow(self, name: str, seconds: dict[str, float | None]) -> bool:
        many = supports_graphs(self.device) and self.k > MOST_BRANCHES
        return name == "loop" and many and seconds.get("vmap") is not None

    def _example(self, shape: Shape) -> Tensor:
        start, stop, size = shape
        numbers = torch.arange((stop - start) * size, device=self.device) % len(self.part)
        return numbers.view(stop - start, size)

    def _probe(self, name: str, shape: Shape, failures: dict[str, str]) -> float | None:
        """Return the seconds of a step with this method, or None if it fails."""
        self.method, self._captured = self._methods[name], {}
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


def resident(part: Part) -> tuple[Tensors, Tensor | None] | None:
    """Return the tensors that hold a part and its sample numbers in them (None: all); None if no tensors hold it."""
    if isinstance(part, Tensors):
        return part, None
    if isinstance(part, SubsetPart) and isinstance(part.part, Tensors):
        return part.part, part.indices.to(part.part.device)
    return None


def _describe(k: int, best: str, seconds: dict[str, float | None], failures: dict[str, str], at_once: int) -> str:
    others = [
        f"{name} {time * 1e3:.2g} ms" if time is not None else f"{name} fails ({failures[name].partition(chr(10))[0]})"
        for name, time in seconds.items()
    ]
    why = f" (one step: {', '.join(others)})" if len(seconds) > 1 else ""
    groups = f", {at_once} at a time to fit into memory" if at_once < k else ""
    return f"{k} replicas step together by {best}{why}{groups}"
