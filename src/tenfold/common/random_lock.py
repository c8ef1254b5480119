"""The lock that threads hold while they seed or restore the random generators, of which a process has one set."""

import threading

RANDOM_LOCK = threading.RLock()
"""A network that one thread builds from a seed must not see the seed of another thread's training."""
