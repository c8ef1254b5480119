"""Digits: 1,797 small handwritten digits that come with scikit-learn, so they are always there."""

from collections.abc import Mapping

import numpy as np
import torch

from tenfold.data.part import Tensors
from tenfold.data.sources.source import Source
from tenfold.data.split import draw


def _load(_: Mapping[str, bytes]) -> tuple[Tensors, Tensors]:
    """Scale by the mean and deviation of all pixels, then divide 80-20, stratified, always in the same way."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).float().reshape(-1, 1, 8, 8)
    whole = Tensors((x - x.mean()) / x.std(), torch.from_numpy(labels).long())
    test, train = draw(len(whole), round(0.2 * len(whole)), whole.targets, np.random.default_rng(0))
    return whole.subset(train), whole.subset(test)


DIGITS = Source(
    name="digits",
    description="small handwritten digits: 1,438 + 359 grey images of 8x8, 10 classes; comes with scikit-learn",
    load=_load,
)
