"""Whether a GPU may round fp32 numbers to tf32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def set_matmul_precision(precision: str) -> Iterator[None]:
    """Allow or forbid tf32 for matrix products and convolutions on a GPU in this block, as the precision says.

    torch by itself allows it for convolutions and forbids it for products; here fp32 means fp32. On a CPU this changes
    nothing.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def product(matrix: Tensor, other: Tensor) -> Tensor:
    """Return matrix times other in full fp32, also where training uses tf32: averaged weights keep their digits."""
    with set_matmul_precision("fp32"):
        return matrix @ other
