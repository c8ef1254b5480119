"""`import tenfold` registers the backend; that it does before torch is imported, too, is in tests/cli/test_startup."""

import torch.distributed as dist

import tenfold.backend


def test_it_is_registered_after_torch() -> None:
    assert tenfold.backend
    assert dist.is_backend_available("tenfold")
    assert dist.Backend.TENFOLD == "tenfold"
