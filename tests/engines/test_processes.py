"""Who is named when a process fails or is lost: the workers in it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tenfold.engines.processes import _messages, _of_workers
from tenfold.errors import ModelError, WorkerLost

CREWS = [range(32), range(32, 64), range(64, 65)]


@pytest.mark.parametrize(("place", "who"), [(1, "workers 32 to 63"), (2, "worker 64")])
def test_the_workers_of_a_process_are_named(place: int, who: str) -> None:
    def messages() -> Iterator[tuple[int, str]]:
        yield 0, "hello"
        raise WorkerLost(place, f"worker {place} (process 7) was killed by SIGKILL")

    crew: Any = SimpleNamespace(messages=messages)
    heard = _messages(crew, CREWS)
    assert next(heard) == (0, "hello")
    with pytest.raises(WorkerLost) as lost:
        next(heard)
    assert str(lost.value) == f"{who} (process 7) was killed by SIGKILL"
    assert lost.value.rank == CREWS[place][0]
    assert str(_of_workers(CREWS[place], ModelError("it does not fit"))) == f"{who}: it does not fit"
    assert str(_of_workers(CREWS[place], RuntimeError("Traceback"))) == f"{who} failed:\nTraceback"
    assert str(_of_workers(CREWS[place], ModelError("worker 40: no"))) == "worker 40: no"
