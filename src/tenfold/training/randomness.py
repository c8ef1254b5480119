"""All sources of chance that a training step may draw from, seeded together."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor


def seed_everything(*numbers: int) -> None:
    """Seed torch, NumPy and Python (dropout, augmentations) from some numbers, such as (seed, epoch, replica)."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> np.uint64(1)))
    random.seed(int(words[0]))
    np.random.seed(int(words[1] & np.uint64(2**32 - 1)))


@contextmanager
def keep_rng_state() -> Iterator[None]:
    """Put all generators back to where they were."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = None if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@dataclass(frozen=True, slots=True)
class RngState:
    """Where all generators stand, for those who take turns in one process.

    NumPy's is not copied, which is slow, but exchanged: whoever takes part begins with `apart`.
    """

    torch: Tensor
    numpy: Any
    python: Any

    @classmethod
    def read(cls) -> Self:
        """Take note of where they stand."""
        return cls(torch.get_rng_state(), np.random.get_bit_generator(), random.getstate())  # type: ignore[attr-defined]

    def restore(self) -> None:
        """Put them back there."""
        torch.set_rng_state(self.torch)
        np.random.set_bit_generator(self.numpy)  # type: ignore[attr-defined]
        random.setstate(self.python)

    @staticmethod
    def use_own_numpy_generator() -> None:
        """Begin to draw from a generator of NumPy's that nobody else has."""
        np.random.set_bit_generator(np.random.MT19937())  # type: ignore[attr-defined]
