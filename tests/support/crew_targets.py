"""What the workers of the crew's tests do; imported by them, so it is a module of its own."""

import os
import pickle
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from tenfold.errors import WorkerLost
from tenfold.workers.pool.worker_reports import WorkerProgress, start_heartbeat


def say(connection: Connection, message: Any) -> None:
    connection.send_bytes(pickle.dumps(message))


def hear(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())


def echo(rank: int, connection: Connection, lifeline: Connection, beats: Any, greeting: str) -> None:
    """Say a greeting, then repeat what is heard until it is "enough"."""
    start_heartbeat(rank, lifeline, beats)
    say(connection, f"{greeting} from {rank}")
    while (heard := hear(connection)) != "enough":
        say(connection, heard)


def leave(rank: int, connection: Connection, lifeline: Connection, beats: Any, leaver: int, code: int) -> None:
    """One leaves after its last words; the others complain about it, a little later and for as long as they live."""
    start_heartbeat(rank, lifeline, beats)
    if rank == leaver:
        say(connection, "last words")
        os._exit(code)
    time.sleep(0.3)
    say(connection, f"worker {leaver} left us")
    time.sleep(60)


def complain(rank: int, connection: Connection, lifeline: Connection, beats: Any) -> None:
    """The second worker fails, and the first one says that it is lost."""
    start_heartbeat(rank, lifeline, beats)
    say(connection, ValueError("a mistake") if rank == 1 else WorkerLost(1, "worker 1 died"))
    time.sleep(60)


def strike(rank: int, connection: Connection, lifeline: Connection, beats: Any, victim: int, number: int) -> None:
    """One sends itself a signal."""
    start_heartbeat(rank, lifeline, beats)
    say(connection, "here")
    hear(connection)
    if rank == victim:
        os.kill(os.getpid(), number)
        say(connection, "survived")
    time.sleep(60)


def stubborn(rank: int, connection: Connection, lifeline: Connection, beats: Any) -> None:
    """Pay no heed to requests to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_heartbeat(rank, lifeline, beats)
    say(connection, "here")
    time.sleep(60)


def work_long(rank: int, connection: Connection, lifeline: Connection, beats: Any, seconds: float) -> None:
    """Say nothing for a while, as in a long step."""
    start_heartbeat(rank, lifeline, beats)
    time.sleep(seconds)
    say(connection, "done")


def talk_much(rank: int, connection: Connection, lifeline: Connection, beats: Any, nbytes: int) -> None:
    """Send more than the kernel keeps, then leave."""
    start_heartbeat(rank, lifeline, beats)
    say(connection, b"x" * nbytes)
    say(connection, "done")
    hear(connection)


def stop_before_the_first_beat(rank: int, connection: Connection, lifeline: Connection, beats: Any) -> None:
    """The last of two is stopped as soon as it has started."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    start_heartbeat(rank, lifeline, beats)
    time.sleep(60)


def never_beat(rank: int, connection: Connection, lifeline: Connection, beats: Any) -> None:
    """The last of two hangs before its heartbeat starts."""
    if rank == 0:
        start_heartbeat(rank, lifeline, beats)
    lifeline.poll(60)


def stop_in_mid_message(rank: int, connection: Connection, lifeline: Connection, beats: Any, nbytes: int) -> None:
    """The last of two is stopped when it has sent the beginning of a message."""
    start_heartbeat(rank, lifeline, beats)
    if rank == 1:
        content = pickle.dumps(b"x" * nbytes)
        os.write(connection.fileno(), len(content).to_bytes(4, "big") + content[: nbytes // 2])
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def get_stuck(
    rank: int, connection: Connection, lifeline: Connection, beats: Any, stuck: list[int], waiting: bool
) -> None:
    """Some make no progress after a while, though they beat; the others step, or wait for them."""
    start_heartbeat(rank, lifeline, beats)
    progress = WorkerProgress(beats, rank)
    for _ in range(10):
        progress.mark()
        time.sleep(0.02)
    while rank not in stuck:
        progress.mark_waiting() if waiting else progress.mark()
        time.sleep(0.05)
    time.sleep(60)
