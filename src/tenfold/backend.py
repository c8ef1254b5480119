"""Tenfold as a backend of torch.distributed: after `import tenfold`, `init_process_group("tenfold")`.

The backend is registered with torch as soon as both are imported, in either order; this does not import torch.
"""

from typing import Any

from tenfold.common.imports import call_when_imported


def register() -> None:
    """Make "tenfold" known to torch.distributed."""
    from torch.distributed.distributed_c10d import Backend  # torch.distributed itself may be half imported

    Backend.register_backend("tenfold", _create, extended_api=True, devices=["cpu"])


def _create(*options: Any) -> Any:
    from tenfold.transport.process_group import make_group

    return make_group(*options)


call_when_imported("torch.distributed.distributed_c10d", register)
