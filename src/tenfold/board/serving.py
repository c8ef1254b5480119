"""Running the server: its address, its socket and its end."""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from tenfold.board.security import Access
from tenfold.errors import ExperimentError, MachineError
from tenfold.runs import Store

PORT = 8642
LOCAL = ("127.0.0.1", "::1", "localhost")
FEWEST_LETTERS = 16


def serve(
    runs: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve the runs of a folder until the process is interrupted; `ready` is called with the address to open."""
    access = check_access(host, token)
    store = Store(runs)
    bound = bind_socket(host, port)
    try:
        import uvicorn

        from tenfold.board.server import Board
    except ImportError as error:
        bound.close()
        raise MachineError(f"the board needs the package {error.name}; `pip install tenfold[board]` has it") from None
    board = Board(store, access)
    server = uvicorn.Server(
        uvicorn.Config(board.app(), log_level="warning", access_log=False, timeout_graceful_shutdown=5, lifespan="off")
    )
    board.feed.stopping = lambda: server.should_exit
    ready(address(host, bound.getsockname()[1], access.token))
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[bound])


def check_access(host: str, token: str | None) -> Access:
    """Return the secrets of a server; ExperimentError if other machines could reach it and no token was given."""
    if host not in LOCAL and token is None:
        raise ExperimentError(
            f"--host {host} lets other machines open the board, over a connection that is not encrypted, and whoever "
            "has the token can stop and remove runs; if that is what you want, choose a token: --token SECRET"
        )
    if token is not None and (len(token) < FEWEST_LETTERS or not token.isascii() or not token.isalnum()):
        raise ExperimentError(f"the token has to be {FEWEST_LETTERS} or more letters and digits")
    names = frozenset() if host in LOCAL else frozenset({host.lower(), socket.getfqdn().lower()})
    return Access(token=token, names=names) if token is not None else Access(names=names)


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket on this port, or on any free one where the usual port is taken; 0 takes any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in (port, 0) if port == PORT else (port,):
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, tried))
        except (OSError, OverflowError) as error:
            bound.close()
            problem = error
            continue
        bound.listen(128)
        return bound
    reason = getattr(problem, "strerror", None) or problem
    raise MachineError(f"the board cannot listen on {host} port {port}: {reason}; --port 0 takes any free port")


def address(host: str, port: int, token: str) -> str:
    """Return the address to open."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?token={token}"
