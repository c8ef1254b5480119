"""Newton-Schulz iteration: nearly the nearest orthogonal matrix, by products of matrices alone."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of K. Jordan (2024): they bring small singular values close to 1 in few steps, though not exactly to 1."""
SMALLEST_NORM = 1e-7
SMALL = 32
"""Gram matrices up to this size are padded to one size and iterated together: starting an operation costs more."""


def gram(z: Tensor) -> Tensor:
    """Return Z Z^T of each matrix of a batch, or Z^T Z where that is smaller."""
    return torch.bmm(z, z.mT) if z.shape[-2] <= z.shape[-1] else torch.bmm(z.mT, z)


def factors(grams: Sequence[Tensor], steps: int) -> list[Tensor]:
    """Return what `factor` returns, for several batches of Gram matrices.

    Matrices of the same size are iterated together, and so are all small ones: rows and columns of zeros that pad a
    matrix to a larger size stay zeros.
    """
    sizes = [one.shape[-1] for one in grams]
    small = max((size for size in sizes if size <= SMALL), default=0)
    members: dict[int, list[int]] = {}
    for place, size in enumerate(sizes):
        members.setdefault(small if size <= SMALL else size, []).append(place)
    found: list[Tensor] = list(grams)
    for size, places in members.items():
        if len(places) == 1:
            found[places[0]] = factor(grams[places[0]], steps)
            continue
        together = factor(torch.cat([_pad(grams[place], size) for place in places]), steps)
        for place, one in zip(places, torch.split(together, [len(grams[place]) for place in places]), strict=True):
            found[place] = one[:, : sizes[place], : sizes[place]] if sizes[place] < size else one
    return found


def factor(grams: Tensor, steps: int) -> Tensor:
    """Return Q such that Q Z is what `steps` Newton-Schulz steps make of Z, for each G = Z Z^T of a batch.

    One step is X <- P X with P = a I + b A + c A^2 and A = X X^T, beginning with X = Z / |Z|. All P are polynomials of
    one symmetric matrix, so they are symmetric and commute: A becomes P A P, and Q = P_k ... P_1 / |Z|. Only the small
    Gram matrix is iterated, and |Z|^2 is its trace.
    """
    a, b, c = COEFFICIENTS
    square = grams.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_(min=SMALLEST_NORM**2)[:, None, None]
    state = grams / square
    product = state
    for step in range(steps):
        polynomial = torch.baddbmm(state, state, state, beta=b, alpha=c)
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        product = polynomial if step == 0 else torch.bmm(polynomial, product)
        if step < steps - 1:
            state = torch.bmm(torch.bmm(polynomial, state), polynomial)
    return product * square.rsqrt()


def apply(w: Tensor, q: Tensor, z: Tensor, alpha: float) -> None:
    """Add alpha Q Z to each matrix of a batch, or alpha Z Q where Q belongs to Z^T Z."""
    if z.shape[-2] <= z.shape[-1]:
        w.baddbmm_(q, z, alpha=alpha)
    else:
        w.baddbmm_(z, q, alpha=alpha)


def _pad(grams: Tensor, size: int) -> Tensor:
    missing = size - grams.shape[-1]
    return functional.pad(grams, (0, missing, 0, missing)) if missing else grams
