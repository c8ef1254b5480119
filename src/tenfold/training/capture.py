"""Recording work on a GPU into a CUDA graph."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

WARM_UPS = 3
"""Steps before the recording, in which libraries choose their kernels and take their memory."""


def capture(step: Callable[[Tensor], Tensor], example: Tensor) -> Callable[[Tensor], Tensor]:
    """Record what `step` does to an input like the example, and return a function that replays it for other inputs.

    The step is executed a few times first. Whatever it reads and writes, except for its input, must keep its address.
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
    """Make operations fail that wait for the device: failing later, while recording, would corrupt the generators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it a prototype, once
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
