"""All random generators that a training step may use, seeded together."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tenfold.common.random_lock import RANDOM_LOCK


def seed_everything(*numbers: int) -> None:
    """Seed torch, NumPy and Python (dropout, augmentations) from some numbers, such as (seed, epoch, replica)."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    with RANDOM_LOCK:
        torch.manual_seed(int(words[0] >> np.uint64(1)))
        random.seed(int(words[0]))
        np.random.seed(int(words[1] & np.uint64(2**32 - 1)))


@contextmanager
def keep_rng_state() -> Iterator[None]:
    """Restore the state of all random generators after this block."""
    devices = None if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    forked = torch.random.fork_rng(devices)
    with RANDOM_LOCK:
        python, numpy = random.getstate(), np.random.get_state()
        forked.__enter__()
    try:
        yield
    finally:
        with RANDOM_LOCK:
            forked.__exit__(None, None, None)
            random.setstate(python)
            np.random.set_state(numpy)


@dataclass(frozen=True, slots=True)
class RngState:
    """The state of all random generators, for workers that take turns in one process.

    NumPy's is not copied, which is slow, but exchanged: each worker begins with `use_own_numpy_generator`.
    """

    torch: Tensor
    numpy: Any
    python: Any

    @classmethod
    def read(cls) -> Self:
        """Return the current state."""
        return cls(torch.get_rng_state(), np.random.get_bit_generator(), random.getstate())  # type: ignore[attr-defined]

    def restore(self) -> None:
        """Restore this state."""
        torch.set_rng_state(self.torch)
        np.random.set_bit_generator(self.numpy)  # type: ignore[attr-defined]
        random.setstate(self.python)

    @staticmethod
    def use_own_numpy_generator() -> None:
        """Give NumPy a new generator, which no other worker uses."""
        np.random.set_bit_generator(np.random.MT19937())  # type: ignore[attr-defined]
