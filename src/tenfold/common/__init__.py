"""Small tools for every package: files, imports, trust, and the traits of metrics and optimizers."""

import os
import threading
from importlib.metadata import PackageNotFoundError, version

PARTS = ("train", "validation", "test")
"""The parts of a data set."""
RANDOM_LOCK = threading.RLock()
"""Held by threads while they use the random generators, of which a process has one set.

A network that one thread builds from a seed must not see the seed of another thread's training.
"""

# in the child nobody would release a lock that another thread holds
os.register_at_fork(before=RANDOM_LOCK.acquire, after_in_parent=RANDOM_LOCK.release, after_in_child=RANDOM_LOCK.release)

try:
    __version__ = version("tenfold")
except PackageNotFoundError:
    __version__ = "0+unknown"
