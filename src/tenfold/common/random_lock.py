"""The lock that threads hold while they use the random generators, of which a process has one set."""

import os
import threading

RANDOM_LOCK = threading.RLock()
"""A network that one thread builds from a seed must not see the seed of another thread's training."""

if hasattr(os, "register_at_fork"):  # in the child nobody would release a lock that another thread holds
    os.register_at_fork(
        before=RANDOM_LOCK.acquire, after_in_parent=RANDOM_LOCK.release, after_in_child=RANDOM_LOCK.release
    )
