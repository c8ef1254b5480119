import threading

import pytest

from tenfold.transport.failure_detector import WaitingThread, is_any_stuck


def test_a_thread_is_stuck_only_while_its_call_lasts():
    thread, released, begun = WaitingThread(), threading.Event(), threading.Event()

    def block():
        begun.set()
        released.wait(30)

    def fail(_seconds):
        raise RuntimeError("a rank was lost")

    with pytest.raises(RuntimeError, match="a rank was lost"):
        thread.wait(block, fail, timeout=30)
    assert begun.wait(30)
    assert is_any_stuck()
    released.set()
    thread.stop()
    thread._thread.join(30)
    assert thread.is_idle
