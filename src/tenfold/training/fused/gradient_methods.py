"""Ways to get the gradients of many replicas of one network, each on a batch of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from tenfold.common.registry import Registry
from tenfold.training.fused.stack import Stack
from tenfold.training.measures import Measure
from tenfold.training.replica import autocast

STREAMS = 16
"""Branches of a CUDA graph that may run at the same time."""


class GradientMethod(ABC):
    """Fills a matrix of gradients, one replica a row."""

    name: ClassVar[str]

    def __init__(self, stack: Stack, loss: Measure, gradient: Tensor, precision: str) -> None:
        self.stack = stack
        self.loss = loss
        self.views = stack.gradient_views(gradient)
        self.precision = precision
        self.device_type = gradient.device.type

    @abstractmethod
    def gradients(self, x: Tensor, y: Tensor, rows: slice, losses: Tensor) -> None:
        """Leave the gradients of these rows in the matrix, and their losses in `losses`; batch i is for row i."""


class Loop(GradientMethod):
    """One replica after another; on several streams while a CUDA graph is captured.

    On a CPU each replica draws from a random stream of its own, so that it learns what it would learn alone.
    """

    name = "loop"

    def __init__(self, stack: Stack, loss: Measure, gradient: Tensor, precision: str) -> None:
        super().__init__(stack, loss, gradient, precision)
        self.chances: list[Tensor] | None = None
        """Each replica's state of torch's generator."""
        self._learnt: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def gradients(self, x: Tensor, y: Tensor, rows: slice, losses: Tensor) -> None:
        """Go through the rows."""

        def job(place: int, row: int) -> Callable[[], None]:
            return lambda: self._one(x[place], y[place], row, losses[place])

        side_by_side([job(place, row) for place, row in enumerate(range(rows.start, rows.stop))], self.device_type)

    def _one(self, x: Tensor, y: Tensor, row: int, out: Tensor) -> None:
        if row not in self._learnt:
            named = dict(self.stack.networks[row].named_parameters())
            self._learnt[row] = [named[name] for name in self.stack.names], [view[row] for view in self.views]
        parameters, views = self._learnt[row]
        with _drawing(self.chances, row):
            with autocast(self.precision, self.device_type):
                loss = self.loss(self.stack.networks[row](x), y)
            found = torch.autograd.grad(loss, parameters, materialize_grads=True)
        torch._foreach_copy_(views, found)
        out.copy_(loss.detach())


class Vmap(GradientMethod):
    """All replicas in the same operations, by torch.func.vmap over their stacked weights.

    Dropout draws for all from one stream. Batch normalisation writes its running statistics into the stacked buffers.
    """

    name = "vmap"

    def gradients(self, x: Tensor, y: Tensor, rows: slice, losses: Tensor) -> None:
        """Do all rows at once."""
        stack = self.stack
        views = {name: view[rows] for name, view in stack.views.items()}
        learnt = {name: views.pop(name) for name in stack.names}
        # What is updated in place under vmap has to lie in one piece, else the update is lost in a copy.
        others = {name: view.contiguous() for name, view in views.items()}
        counters = {name: counter[rows] for name, counter in stack.counters.items()}
        found, values = vmap(grad_and_value(self._one), randomness="different")(learnt, others | counters, x, y)
        torch._foreach_copy_([view[rows] for view in self.views], [found[name] for name in stack.names])
        if views:
            torch._foreach_copy_(list(views.values()), list(others.values()))
        losses.copy_(values)

    def _one(self, learnt: dict[str, Tensor], others: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with autocast(self.precision, self.device_type):
            return self.loss(functional_call(self.stack.network, (learnt, others), (x,)), y)  # type: ignore[no-any-return]


WAYS: Registry[type[GradientMethod]] = Registry("way to step replicas together", {"vmap": Vmap, "loop": Loop})


def side_by_side(jobs: Sequence[Callable[[], None]], device_type: str) -> None:
    """Do the jobs in turn; while a CUDA graph is captured, as branches of it on several streams."""
    if device_type != "cuda" or len(jobs) == 1 or not torch.cuda.is_current_stream_capturing():
        for job in jobs:
            job()
        return
    main = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in range(min(STREAMS, len(jobs)))]  # type: ignore[no-untyped-call]
    for stream in streams:
        stream.wait_stream(main)
    for number, job in enumerate(jobs):
        with torch.cuda.stream(streams[number % len(streams)]):
            job()
    for stream in streams:
        main.wait_stream(stream)


@contextmanager
def _drawing(chances: list[Tensor] | None, row: int) -> Iterator[None]:
    if chances is None:
        yield
        return
    torch.set_rng_state(chances[row])
    yield
    chances[row] = torch.get_rng_state()
