"""What a process can still do that was forked after a training.

The threads that torch computes with (OpenMP) do not exist in such a process, and torch would wait for them forever.
"""

import os

import torch

_trained_in: set[int] = set()
"""The process that was the first to train, by its number; those that are forked from it know it, too."""


def use_threads_that_exist() -> bool:
    """Return whether this process may use several threads; if it was forked after a training, let torch use only one.

    Whoever trains in this process calls this first.
    """
    if not _trained_in or os.getpid() in _trained_in:
        _trained_in.add(os.getpid())
        return True
    torch.set_num_threads(1)
    return False
