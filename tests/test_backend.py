"""`import tenfold` registers the backend, whichever of both is imported first."""

import subprocess
import sys

import torch.distributed as dist

import tenfold.backend

PROGRAM = """
import sys
import tenfold
assert "torch" not in sys.modules
import torch
assert torch.distributed.is_backend_available("tenfold")
assert torch.distributed.Backend.default_device_backend_map["cpu"] == "gloo"
assert not any("_AfterImport" in str(finder) for finder in sys.meta_path)
assert "tenfold.transport" not in sys.modules
"""


def test_it_is_registered_after_torch() -> None:
    assert tenfold.backend
    assert dist.is_backend_available("tenfold")
    assert dist.Backend.TENFOLD == "tenfold"


def test_it_is_registered_before_torch_without_importing_it() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=100)
