"""Joining the ranks of a launch."""

from types import SimpleNamespace
from typing import Any

import pytest

from tenfold.errors import MachineError
from tenfold.launch.detect import detect_world
from tenfold.transport import meeting as world

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


def test_ranks_that_failed_are_not_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    found = detect_world()
    assert found is not None
    failure: Any = None
    joined: Any = SimpleNamespace(network=SimpleNamespace(failure=lambda: failure))
    monkeypatch.setitem(world._joined, "torch", joined)
    assert world.join(found) is joined
    failure = RuntimeError("worker 1 failed:\nTraceback\nValueError: bad batch\n")
    with pytest.raises(MachineError, match="ValueError"):
        world.join(found)
