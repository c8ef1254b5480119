"""Which workers are named when a process fails."""

import pytest

from tenfold.engines.processes import _named
from tenfold.errors import ModelError, WorkerLost, name_workers


@pytest.mark.parametrize(("ranks", "who"), [(range(32, 64), "workers 32 to 63"), (range(64, 65), "worker 64")])
def test_the_workers_of_a_process_are_named(ranks: range, who: str) -> None:
    assert name_workers(ranks) == who
    assert str(_named(ModelError("it does not fit"), ranks)) == f"{who}: it does not fit"
    assert str(_named(RuntimeError("Traceback"), ranks)) == f"{who} failed:\nTraceback"
    assert str(_named(WorkerLost(40, "worker 40 died"), ranks)) == "worker 40 died"
