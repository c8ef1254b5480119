"""Methods to compute the gradients of many replicas of one network, each on its own batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from tenfold.common.registry import Registry
from tenfold.data.tree import tree_map
from tenfold.training.fused.stack import Stack
from tenfold.training.measures import Measure
from tenfold.training.network_call import arguments_of, autocast, call_network, plain_outputs

STREAMS = 16
"""How many branches of a CUDA graph may run at the same time."""


class GradientMethod(ABC):
    """Computes a matrix of gradients, one row per replica."""

    name: ClassVar[str]

    def __init__(self, stack: Stack, loss: Measure, gradient: Tensor, precision: str) -> None:
        self.stack = stack
        self.loss = loss
        self.views = stack.gradient_views(gradient)
        self.precision = precision
        self.device_type = gradient.device.type

    @abstractmethod
    def gradients(self, x: Any, y: Tensor, rows: slice, losses: Tensor) -> None:
        """Write the gradients of these rows into the matrix, and their losses into `losses`; batch i is for row i."""


class Loop(GradientMethod):
    """One replica after another; on several streams while a CUDA graph is captured.

    On CPU each replica has its own random generator, so that it trains as it would alone.
    """

    name = "loop"

    def __init__(self, stack: Stack, loss: Measure, gradient: Tensor, precision: str) -> None:
        super().__init__(stack, loss, gradient, precision)
        self.rng_states: list[Tensor] | None = None
        """The state of torch's random generator for each replica."""
        self._tensors: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def gradients(self, x: Any, y: Tensor, rows: slice, losses: Tensor) -> None:
        """Compute one row after another."""

        def job(place: int, row: int) -> Callable[[], None]:
            return lambda: self._one(tree_map(lambda of: of[place], x), y[place], row, losses[place])

        side_by_side([job(place, row) for place, row in enumerate(range(rows.start, rows.stop))], self.device_type)

    def _one(self, x: Any, y: Tensor, row: int, out: Tensor) -> None:
        if row not in self._tensors:
            named = dict(self.stack.networks[row].named_parameters())
            self._tensors[row] = [named[name] for name in self.stack.names], [view[row] for view in self.views]
        parameters, views = self._tensors[row]
        with _own_generator(self.rng_states, row):
            with autocast(self.precision, self.device_type):
                loss = self.loss(call_network(self.stack.networks[row], x), y)
            found = torch.autograd.grad(loss, parameters, materialize_grads=True)
        torch._foreach_copy_(views, found)
        out.copy_(loss.detach())


class Vmap(GradientMethod):
    """All replicas in the same operations, by torch.func.vmap over their stacked weights.

    Dropout uses one random generator for all. Batch normalization writes its running statistics into the stacked
    buffers.
    """

    name = "vmap"

    def gradients(self, x: Any, y: Tensor, rows: slice, losses: Tensor) -> None:
        """Compute all rows at once."""
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

    def _one(self, learnt: dict[str, Tensor], others: dict[str, Tensor], x: Any, y: Tensor) -> Tensor:
        with autocast(self.precision, self.device_type):
            network = self.stack.network
            args, kwargs = arguments_of(network, x)
            return self.loss(plain_outputs(functional_call(network, (learnt, others), args, kwargs)), y)  # type: ignore[no-any-return]


GRADIENT_METHODS: Registry[type[GradientMethod]] = Registry("gradient method", {"vmap": Vmap, "loop": Loop})


def side_by_side(jobs: Sequence[Callable[[], None]], device_type: str) -> None:
    """Run the jobs in turn; while a CUDA graph is captured, as branches of it on several streams."""
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
def _own_generator(states: list[Tensor] | None, row: int) -> Iterator[None]:
    if states is None:
        yield
        return
    torch.set_rng_state(states[row])
    yield
    states[row] = torch.get_rng_state()
