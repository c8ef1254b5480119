"""Digits: 1,797 small handwritten digits that come with scikit-learn, so they are always available."""

import gzip
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tenfold.data.sources import Source
from tenfold.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from tenfold.data.part import Tensors


FILE = "datasets/data/digits.csv.gz"
LARGEST_PIXEL = 16
MEAN, STD = 4.8841646, 6.0168137
"""Of all pixels, which go from 0 to 16."""


def _scale(pixels: "Tensor") -> "Tensor":
    return (pixels.float() - MEAN) / STD


def _load(_: Mapping[str, bytes]) -> "tuple[Tensors, Tensors]":
    from tenfold.data.part import Tensors

    train, test = (Tensors(part.x.clone(), part.targets.clone()) for part in _parts())
    return train, test


@cache
def _parts() -> "tuple[Tensors, Tensors]":
    """Scale by the mean and deviation of all pixels, then divide 80-20, stratified, always in the same way.

    The text is parsed once: that takes longer than a short training.
    """
    import numpy as np
    import torch

    from tenfold.data.part import Tensors
    from tenfold.data.splitting import draw

    table = np.loadtxt(gzip.decompress(_file().read_bytes()).decode().splitlines(), delimiter=",")
    x = torch.from_numpy(table[:, :-1]).float().reshape(-1, 1, 8, 8)
    whole = Tensors((x - x.mean()) / x.std(), torch.from_numpy(table[:, -1]).long())
    test, train = draw(len(whole), round(0.2 * len(whole)), whole.targets, np.random.default_rng(0))
    return whole.subset(train), whole.subset(test)


def _file() -> Path:
    """Return the file inside scikit-learn, found without importing scikit-learn, which takes a second."""
    package = find_spec("sklearn")
    folders = (package.submodule_search_locations if package else None) or []
    file = next((path for folder in folders if (path := Path(folder, FILE)).is_file()), None)
    if file is None:
        raise DataError(f"the digits come with scikit-learn, but sklearn/{FILE} was not found; install scikit-learn")
    return file


DIGITS = Source(
    name="digits",
    description="small handwritten digits: 1,438 + 359 grey images of 8x8, 10 classes; comes with scikit-learn",
    load=_load,
    scale=_scale,
    largest_pixel=LARGEST_PIXEL,
)
