"""All random generators that a training step may use, seeded together."""

import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from tenfold.common import RANDOM_LOCK


def seed_everything(*numbers: int) -> None:
    """Seed torch, NumPy and Python (dropout, augmentations) from some numbers, such as (seed, epoch, replica)."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    with RANDOM_LOCK:
        torch.manual_seed(int(words[0] >> np.uint64(1)))
        random.seed(int(words[0]))
        np.random.seed(int(words[1] & np.uint64(2**32 - 1)))


@contextmanager
def keep_rng_state() -> Iterator[None]:
    """Restore the state of all random generators after this block; no other thread may use them in it."""
    with RANDOM_LOCK:
        before = _Generators.read()
        try:
            yield
        finally:
            before.restore()


def read_generators() -> tuple[Any, ...]:
    """Return the state of torch's CPU generator, NumPy's and Python's, for comparison."""
    _, keys, *place = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), (np.asarray(keys).tobytes(), *place), random.getstate()


@contextmanager
def training_rng() -> Iterator[None]:
    """In this block, the training of this thread draws its own random numbers; the program's are restored afterwards.

    A process has one set of random generators, so trainings in several threads take turns with them: code that may
    draw, such as a step with dropout, runs inside a block of `holding_random_numbers`.
    """
    outer, turn = getattr(_of_thread, "turn", None), _Turn()
    _of_thread.turn = turn
    try:
        with turn:
            pass
        yield
    finally:
        _of_thread.turn = outer
        turn.end()


def holding_random_numbers(needed: bool = True) -> AbstractContextManager[Any]:
    """Return the context in which this thread's training draws random numbers while other trainings wait.

    It does nothing outside of `training_rng`, or if it is not `needed` because nothing is drawn.
    """
    turn: _Turn | None = getattr(_of_thread, "turn", None)
    return turn if turn is not None and needed else nullcontext()


_of_thread = threading.local()


class _Turn:
    """One training's turn with the random generators; it finds them in the state in which it left them."""

    holder: ClassVar["_Turn | None"] = None
    """The training whose state the generators have; None for the program's own state."""
    outside: ClassVar["_Generators"]
    """The program's own state, while a training has the generators."""

    def __init__(self) -> None:
        self._state: _Generators | None = None

    def __enter__(self) -> None:
        RANDOM_LOCK.acquire()
        if _Turn.holder is self:
            return
        now = _Generators.read()
        if _Turn.holder is None:
            _Turn.outside = now
        else:
            _Turn.holder._state = now
        if self._state is not None:
            self._state.restore()
        _Turn.holder = self

    def __exit__(self, *_: object) -> None:
        RANDOM_LOCK.release()

    def end(self) -> None:
        """Restore the program's own state, unless another training uses the generators."""
        with RANDOM_LOCK:
            if _Turn.holder is self:
                _Turn.outside.restore()
                _Turn.holder = None


@dataclass(frozen=True, slots=True)
class _Generators:
    """A copy of the state of all random generators."""

    torch: Tensor
    cuda: list[Tensor]
    numpy: Any
    python: Any

    @classmethod
    def read(cls) -> Self:
        has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        cuda = torch.cuda.get_rng_state_all() if has_cuda else []
        return cls(torch.get_rng_state(), cuda, np.random.get_state(), random.getstate())

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        np.random.set_state(self.numpy)
        random.setstate(self.python)
