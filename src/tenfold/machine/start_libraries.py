"""Initializes the libraries behind torch before training is timed.

The first products of a process load kernels, make handles and start threads: some 10 ms on a CPU, several hundred on a
GPU, more than a short run trains.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from itertools import product

import torch
from torch import nn
from torch.nn import functional

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
ROWS, FEATURES, CLASSES = 64, 784, 10
"""Large enough that torch divides the work among its threads."""
MOST_LAYERS = 32


def start_libraries(network: nn.Module, device: torch.device, sizes: Iterable[int]) -> None:
    """Compute as the layers of a network will with batches of these sizes, but on ones and without calling the network.

    No random numbers are drawn. On a CPU one small layer is enough, once per process; a GPU has other kernels for other
    shapes.
    """
    layers = list(network.modules())
    convolves = any(isinstance(layer, CONVOLUTIONS) for layer in layers)
    shapes = dict.fromkeys((one.in_features, one.out_features) for one in layers if isinstance(one, nn.Linear))
    with suppress(RuntimeError):  # such as too little memory: the first real step raises it again
        _start(device, torch.get_num_threads(), convolves)
        if device.type == "cuda":
            for (inputs, outputs), size in product(list(shapes)[:MOST_LAYERS], sizes):
                _learn(device, size, inputs, outputs)
            torch.cuda.synchronize(device)


@cache
def _start(device: torch.device, _threads: int, convolves: bool) -> None:
    """Compute a small layer, and a convolution if asked to; threads that there were not before start, too."""
    _learn(device, ROWS, FEATURES, CLASSES)
    if convolves:
        images = torch.ones(2, 1, 28, 28, device=device)
        kernel = torch.ones(8, 1, 5, 5, device=device, requires_grad=True)
        functional.max_pool2d(functional.conv2d(images, kernel).relu(), 2).sum().backward()  # type: ignore[no-untyped-call]


def _learn(device: torch.device, size: int, inputs: int, outputs: int) -> None:
    """Compute the gradient of one layer."""
    x = torch.ones(size, inputs, device=device, requires_grad=True)
    weight = torch.ones(outputs, inputs, device=device, requires_grad=True)
    bias = torch.ones(outputs, device=device, requires_grad=True)
    targets = torch.zeros(size, dtype=torch.int64, device=device)
    functional.cross_entropy(functional.linear(x, weight, bias).relu(), targets).backward()  # type: ignore[no-untyped-call]
