"""Many replicas of one network on one device, stepped together: own weights, optimizers, data orders and chances."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.data import Part, SubsetPart, Tensors
from tenfold.experiment import Training
from tenfold.training.capture import capture, captures, synchronize
from tenfold.training.fused.device_memory import free_memory, groups_for_memory, peak_memory
from tenfold.training.fused.gradient_methods import WAYS, GradientMethod, Loop
from tenfold.training.fused.stack import Stack
from tenfold.training.fused.updates import StackedOptimizer, make_rule
from tenfold.training.measures import Measure
from tenfold.training.optimizers import make_optimizer
from tenfold.training.schedules import Rates

Shape = tuple[int, int, int]
"""First replica, last + 1, samples in a batch."""
Learn = Callable[[Tensor], Tensor]

MOST_BRANCHES = 64
"""Beyond so many replicas a CUDA graph of single ones takes longer to capture than it saves."""
WORTH_CAPTURING = 8
"""Steps of one shape under which they are not captured."""
PROBE_STEPS = 5


class Fused:
    """k replicas that step together. All begin as `network`, which becomes the first of them.

    `step` takes sample numbers, k rows of a batch each, and returns k losses. Whatever differs in size between replicas
    goes through `learn`, for some rows at a time.
    """

    def __init__(
        self,
        network: nn.Module,
        k: int,
        training: Training,
        loss: Measure,
        part: Tensors,
        *,
        rates: Rates,
        matrix: Tensor | None = None,
        way: str = "auto",
        apart: bool = False,
    ) -> None:
        make_optimizer(training, network)  # says what is wrong with the options
        network.train()
        self.k = k
        self.training = training
        self.part = part
        self.stack = Stack(network, k, matrix)
        weights = self.stack.matrix[:, : self.stack.parameters]
        self.optimizer = StackedOptimizer(make_rule(training, network), weights, self.stack.learning, training.clip)
        self.rates = rates
        self.steps = 0
        self.apart = apart
        """Whether `learn` only leaves gradients, for the caller to mix before it calls `optimizer.step`."""
        self.together = k
        """Replicas whose activations are in memory at the same time."""
        self.told = ""
        """How the replicas step and why, as a sentence; "" before `prepare`."""
        self.trouble = ""
        """Why no step works, if `prepare` found none that does."""
        arguments = (self.stack, loss, self.optimizer.gradient, training.precision)
        self._ways: dict[str, GradientMethod] = {
            name: WAYS[name](*arguments) for name in ([way] if way != "auto" else WAYS)
        }
        self.way = self._ways[way if way != "auto" else "loop"]
        self._captured: dict[Shape, Learn] = {}

    @property
    def device(self) -> torch.device:
        """Where the replicas are."""
        return self.stack.matrix.device

    def step(self, indices: Tensor) -> Tensor:
        """Let every replica learn from a batch, given by sample numbers [k, batch]; return the losses before it."""
        self.advance()
        return self.learn(indices, slice(0, self.k))

    def advance(self) -> None:
        """Set the learning rate of the step that comes next, and count it."""
        self.optimizer.rate.fill_(self.rate)
        self.steps += 1

    @property
    def rate(self) -> float:
        """The learning rate of the step that comes next."""
        return self.rates.at(self.steps)

    def learn(self, indices: Tensor, rows: slice) -> Tensor:
        """Let some replicas learn from batches of one size; return their losses."""
        captured = self._captured.get((rows.start, rows.stop, indices.shape[1]))
        return captured(indices) if captured is not None else self._learn(indices, rows)

    def _learn(self, indices: Tensor, rows: slice) -> Tensor:
        losses = torch.empty(len(indices), device=self.device)
        for start in range(rows.start, rows.stop, self.together):
            some = slice(start, min(rows.stop, start + self.together))
            own = slice(some.start - rows.start, some.stop - rows.start)
            numbers = indices[own].reshape(-1)
            shape = (some.stop - some.start, indices.shape[1])
            x, y = (of.index_select(0, numbers).view(*shape, *of.shape[1:]) for of in (self.part.x, self.part.y))
            self.way.gradients(x, y, some, losses[own])
        if not self.apart:
            self.optimizer.step(rows)
        return losses

    def mix(self, matrix: Tensor, *, alike: bool = False) -> None:
        """Do X <- M X with the replicas' states; `alike` says that they are the same afterwards."""
        self.stack.mix(matrix, alike=alike)

    @property
    def has_own_chances(self) -> bool:
        """Whether each replica draws from a random stream of its own."""
        return isinstance(self.way, Loop) and self.device.type == "cpu"

    def seed(self, chances: list[Tensor]) -> None:
        """Give each replica its random stream, a state of torch's generator, where they have their own."""
        if isinstance(self.way, Loop) and self.has_own_chances:
            self.way.chances = chances

    def state(self, row: int) -> dict[str, Any]:
        """Return one replica's state_dict, as copies."""
        return self.stack.state(row)

    def load(self, row: int, state: dict[str, Any]) -> None:
        """Take on one replica's state_dict."""
        self.stack.load(row, state)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that changes from step to step, by name: what a checkpoint holds."""
        return self.stack.tensors() | self.optimizer.tensors()

    def prepare(self, shapes: Mapping[Shape, int]) -> str:
        """Choose the faster way by a short probe, and capture the shapes that come often, each with its count.

        Nothing has been learnt afterwards. Returns why steps are not captured where they could be, or "".
        """
        usual = max(shapes, key=lambda shape: (shapes[shape], shape[1] - shape[0]))
        seconds: dict[str, float | None] = {}
        trouble: dict[str, str] = {}
        captured: dict[str, dict[Shape, Learn]] = {}
        reason = ""
        with self._unchanged():
            self._fit(usual[2])
            for name in self._ways:
                if not self._is_hopeless(name, seconds):
                    seconds[name] = self._probe(name, usual, trouble)
                    captured[name] = self._captured
            works = {name: time for name, time in seconds.items() if time is not None}
            if not works:
                self.trouble = trouble[name]  # that of the last, which is the plainest way
                return ""
            best = min(works, key=works.__getitem__)
            self.way, self._captured = self._ways[best], captured.pop(best)
            captured.clear()
            if captures(self.device):
                for shape, count in shapes.items():
                    if count >= WORTH_CAPTURING and shape not in self._captured and not reason:
                        reason = self._capture(shape)
        self.told = _sentence(self.k, best, seconds, trouble, self.together)
        return reason

    def _fit(self, size: int) -> None:
        """Find out how many replicas' activations the device can hold at once."""
        try:
            each = peak_memory(lambda: self._learn(self._example((0, 1, size)), slice(0, 1)), self.device)
        except Exception:  # the first real step says what is wrong, and where
            return
        if each:
            groups = groups_for_memory(self.k, each, free_memory(self.device))
            self.together = min(self.together, max(map(len, groups)))

    def _is_hopeless(self, name: str, seconds: dict[str, float | None]) -> bool:
        many = captures(self.device) and self.k > MOST_BRANCHES
        return name == "loop" and many and seconds.get("vmap") is not None

    def _example(self, shape: Shape) -> Tensor:
        start, stop, size = shape
        numbers = torch.arange((stop - start) * size, device=self.device) % len(self.part)
        return numbers.view(stop - start, size)

    def _probe(self, name: str, shape: Shape, trouble: dict[str, str]) -> float | None:
        """Return the seconds of a step in this way, or None where it does not work."""
        self.way, self._captured = self._ways[name], {}
        rows, example = slice(*shape[:2]), self._example(shape)
        try:
            self._learn(example, rows)
            if len(self._ways) == 1:
                return 0.0
            if captures(self.device):
                self._capture(shape)
            self.learn(example, rows)
            synchronize(self.device)
            began = perf_counter()
            for _ in range(PROBE_STEPS):
                self.learn(example, rows)
            synchronize(self.device)
            return (perf_counter() - began) / PROBE_STEPS
        except Exception as error:  # whatever a network of the user's own makes of it
            trouble[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
            return None

    def _capture(self, shape: Shape) -> str:
        """Capture steps of this shape; return why it was impossible, or ""."""
        rows = slice(*shape[:2])
        try:
            self._captured[shape] = capture(lambda indices: self._learn(indices, rows), self._example(shape))
        except Exception as error:  # torch names no class for what cannot be captured
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return ""

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Put everything back at the end: weights, optimizers, generators."""
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
    """Return the tensors that hold a part, and which of their samples it is (None: all); None where none hold it."""
    if isinstance(part, Tensors):
        return part, None
    if isinstance(part, SubsetPart) and isinstance(part.part, Tensors):
        return part.part, part.indices.to(part.part.x.device)
    return None


def _sentence(k: int, best: str, seconds: dict[str, float | None], trouble: dict[str, str], together: int) -> str:
    others = [
        f"{name} {time * 1e3:.2g} ms" if time is not None else f"{name} does not work ({trouble[name]})"
        for name, time in seconds.items()
    ]
    why = f" (one step: {', '.join(others)})" if len(seconds) > 1 else ""
    groups = f", {together} at a time for want of memory" if together < k else ""
    return f"{k} replicas step together by {best}{why}{groups}"
