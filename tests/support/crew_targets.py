"""What the workers of the crew's tests do; imported by them, so it is a module of its own."""

import ctypes
import os
import pickle
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from tenfold.errors import WorkerLost
from tenfold.workers.pool import attach_to_parent


def say(connection: Connection, message: Any) -> None:
    connection.send_bytes(pickle.dumps(message))


def hear(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())


def echo(rank: int, connection: Connection, lifeline: Connection, floats: Any, greeting: str) -> None:
    """Say a greeting, then repeat what is heard until it is "enough"."""
    attach_to_parent(rank, lifeline, floats)
    say(connection, f"{greeting} from {rank}")
    while (heard := hear(connection)) != "enough":
        say(connection, heard)


def leave(rank: int, connection: Connection, lifeline: Connection, floats: Any, leaver: int, code: int) -> None:
    """One leaves after its last words; the others complain about it, a little later and for as long as they live."""
    attach_to_parent(rank, lifeline, floats)
    if rank == leaver:
        say(connection, "last words")
        os._exit(code)
    time.sleep(0.3)
    say(connection, f"worker {leaver} left us")
    time.sleep(60)


def complain(rank: int, connection: Connection, lifeline: Connection, floats: Any) -> None:
    """The second worker fails, and the first one says that it is lost."""
    attach_to_parent(rank, lifeline, floats)
    say(connection, ValueError("a mistake") if rank == 1 else WorkerLost(1, "worker 1 died"))
    time.sleep(60)


def strike(rank: int, connection: Connection, lifeline: Connection, floats: Any, victim: int, number: int) -> None:
    """One sends itself a signal."""
    attach_to_parent(rank, lifeline, floats)
    say(connection, "here")
    hear(connection)
    if rank == victim:
        os.kill(os.getpid(), number)
        say(connection, "survived")
    time.sleep(60)


def stubborn(rank: int, connection: Connection, lifeline: Connection, floats: Any) -> None:
    """Pay no heed to requests to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    attach_to_parent(rank, lifeline, floats)
    say(connection, "here")
    time.sleep(60)


def keep_the_interpreter(rank: int, connection: Connection, lifeline: Connection, floats: Any, seconds: int) -> None:
    """Let no other thread of this process run for a while, as a call into C may."""
    attach_to_parent(rank, lifeline, floats)
    ctypes.PyDLL(None).sleep(seconds)
    say(connection, "done")


def talk_now_and_then(rank: int, connection: Connection, lifeline: Connection, floats: Any) -> None:
    """Say something ten times a second."""
    attach_to_parent(rank, lifeline, floats)
    while True:
        say(connection, "here")
        time.sleep(0.1)


def talk_much(rank: int, connection: Connection, lifeline: Connection, floats: Any, nbytes: int) -> None:
    """Send more than the kernel keeps, then leave."""
    attach_to_parent(rank, lifeline, floats)
    say(connection, b"x" * nbytes)
    say(connection, "done")
    hear(connection)


def stop_at_once(rank: int, connection: Connection, lifeline: Connection, floats: Any) -> None:
    """The last of two is stopped as soon as it has started."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    attach_to_parent(rank, lifeline, floats)
    time.sleep(60)


def never_start(rank: int, connection: Connection, lifeline: Connection, floats: Any) -> None:
    """The last of two hangs before it runs its own code."""
    if rank == 0:
        attach_to_parent(rank, lifeline, floats)
    lifeline.poll(60)


def stop_in_mid_message(rank: int, connection: Connection, lifeline: Connection, floats: Any, nbytes: int) -> None:
    """The last of two is stopped when it has sent the beginning of a message."""
    attach_to_parent(rank, lifeline, floats)
    if rank == 1:
        content = pickle.dumps(b"x" * nbytes)
        os.write(connection.fileno(), len(content).to_bytes(4, "big") + content[: nbytes // 2])
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def get_stuck(
    rank: int, connection: Connection, lifeline: Connection, floats: Any, stuck: list[int], waiting: bool
) -> None:
    """Some make no progress after a while; the others step, or wait for them."""
    progress = attach_to_parent(rank, lifeline, floats)
    for _ in range(10):
        progress.mark()
        time.sleep(0.02)
    while rank not in stuck:
        progress.mark_waiting() if waiting else progress.mark()
        time.sleep(0.05)
    time.sleep(60)
