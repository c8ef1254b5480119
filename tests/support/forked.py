"""Processes that tests fork from the server that has torch; their own workers come from it, too."""

from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

from tenfold.workers.pool.worker_pool import context, start_server


def start_forked(target: Callable[..., None], *arguments: Any) -> Any:
    """Call a function in a new process."""
    start_server()
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    process = context().Process(target=_call, args=(address, target, arguments))  # type: ignore[attr-defined]
    process.start()
    return process


def _call(address: str, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Call the function where starting workers does not start another server, which would import torch again."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address = address
    server.ensure_running = forkserver.ensure_running = lambda: None
    target(*arguments)
