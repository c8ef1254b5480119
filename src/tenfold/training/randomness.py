"""All sources of chance that a training step may draw from, seeded together."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(*numbers: int) -> None:
    """Seed torch, NumPy and Python (dropout, augmentations) from some numbers, such as (seed, epoch, replica)."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> np.uint64(1)))
    random.seed(int(words[0]))
    np.random.seed(int(words[1] & np.uint64(2**32 - 1)))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put all generators back to where they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
