"""The one arithmetic of averaging, so that every engine gets the same bits."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.mixing import Round

Array = TypeVar("Array", torch.Tensor, NDArray[Any])


def average_in_rank_order(
    members: Sequence[Array], weights: Sequence[float] | None, out: Array, scratch: Array | None = None
) -> None:
    """Write the average of the members into `out`.

    Without weights out = ((x_0 + x_1) + x_2 + ...) * (1/m), with weights (shares that sum to 1)
    out = ((w_0 * x_0) + w_1 * x_1) + ..., where members come in rank order and every operation rounds once, to the
    members' type. No multiplication is fused with an addition, so the bits depend neither on how a vector is cut into
    blocks nor on the processor.

    Takes torch tensors or numpy arrays. `out` may be one of the members; `scratch` is two rows of a member's shape to
    work in.
    """
    library: Any = torch if isinstance(out, torch.Tensor) else np
    if scratch is None:
        scratch = library.empty((2, *members[0].shape), dtype=members[0].dtype)
    total, term = scratch[0], scratch[1]
    if weights is None:
        partial = members[0]
        for member in members[1:]:
            library.add(partial, member, out=total)
            partial = total
        library.multiply(partial, 1 / len(members), out=out)
    else:
        library.multiply(members[0], weights[0], out=total)
        for member, weight in zip(members[1:], weights[1:], strict=True):
            library.multiply(member, weight, out=term)
            library.add(total, term, out=total)
        out[...] = total


def compute_shares(round_: Round, samples: Sequence[float] | None, rank: int) -> tuple[float, ...] | None:
    """Return the weight of each of the rank's sources in this round, or None where all are equal.

    None chooses the unweighted form of `average_in_rank_order`: equal weights give the same bits as no weights.
    """
    row = round_.matrix(samples)[rank]
    counts = tuple(float(row[source]) for source in round_.sources[rank])
    return None if max(counts) - min(counts) < 1e-12 else counts
