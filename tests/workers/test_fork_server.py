"""Threads that start processes at the same time."""

import os
import sys
import threading

from tenfold.workers.fork_server import _environment, without_main


def test_they_take_turns_and_leave_the_program_as_it_was() -> None:
    main, ready = sys.modules["__main__"], threading.Barrier(8)

    def start() -> None:
        ready.wait()
        for _ in range(200):
            with without_main(), _environment("TENFOLD_TEST_OF_THREADS", "set"):
                assert sys.modules["__main__"] is not main
                assert os.environ["TENFOLD_TEST_OF_THREADS"] == "set"

    failed: list[object] = []
    before, threading.excepthook = threading.excepthook, failed.append
    try:
        threads = [threading.Thread(target=start) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        threading.excepthook = before
    assert not failed
    assert sys.modules["__main__"] is main
    assert "TENFOLD_TEST_OF_THREADS" not in os.environ
