"""Signs of life through a store: who is watched, and by what."""

import subprocess
import sys

import pytest
import torch.distributed as dist

from tenfold.transport.network import watch
from tenfold.transport.network.watch import Watch

BEAT = 0.02


@pytest.mark.timeout(60)
def test_a_neighbour_with_a_process_of_another_container_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BEAT", BEAT)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    store = dist.HashStore()
    one, other = (Watch(store, rank, ["worker 0", "worker 1"]) for rank in range(2))
    one.start({1: ended.pid})
    other.start({})
    try:
        assert one.trouble(within=10 * BEAT) is None
    finally:
        for each in (one, other):
            each.stop(patience=1.0)
