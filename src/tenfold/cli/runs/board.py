"""`tenfold board`: a local page that shows all runs as they train."""

import os
import signal
import sys
import threading
from typing import Annotated

import typer

from tenfold.cli import options


def board(
    runs: options.Runs = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", help="The port; 0 takes any free one. If 8642 is taken, any free one.", min=0, max=65535
        ),
    ] = 8642,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="The address to listen on. Any but this machine's own needs --token, and is not encrypted."
        ),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option("--token", help="The secret in the address. Default: a random one.", show_default=False),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    until_stdin_ends: Annotated[bool, typer.Option("--until-stdin-ends", hidden=True)] = False,
) -> None:
    """Show all runs of a folder on a local page, live, until Ctrl-C.

    The page sorts, filters, groups and compares runs, follows those that are running, and can stop, resume, tag and
    remove them. Only whoever has the address with its token can open it.

    Examples: [cyan]tenfold board[/], [cyan]tenfold board --runs lab/runs --port 0 --no-open[/]
    """
    from tenfold.board.serving import serve

    if until_stdin_ends:
        threading.Thread(target=_end_with_stdin, daemon=True, name="tenfold-lifeline").start()

    def ready(address: str) -> None:
        typer.echo(f"the board is at {address}")
        typer.echo("Ctrl-C ends it; runs that are training continue")
        if not no_open:
            import webbrowser

            webbrowser.open(address)

    serve(runs, host=host, port=port, token=token, ready=ready)


def _end_with_stdin() -> None:
    """End the server when the process that started it is gone, which holds the other end of the pipe."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
