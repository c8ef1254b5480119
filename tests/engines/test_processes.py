"""Which workers are named when a process fails, and how many there may be."""

from pathlib import Path

import pytest

import tenfold
from tenfold.engines.processes import _named
from tenfold.errors import MachineError, ModelError, WorkerLost, name_workers
from tenfold.machine import limits


@pytest.mark.parametrize(("ranks", "who"), [(range(32, 64), "workers 32 to 63"), (range(64, 65), "worker 64")])
def test_the_workers_of_a_process_are_named(ranks: range, who: str) -> None:
    assert name_workers(ranks) == who
    assert str(_named(ModelError("it does not fit"), ranks)) == f"{who}: it does not fit"
    assert str(_named(RuntimeError("Traceback"), ranks)) == f"{who} failed:\nTraceback"
    assert str(_named(WorkerLost(40, "worker 40 died"), ranks)) == "worker 40 died"


def test_too_many_workers_for_the_open_files_leave_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "open_file_limit", lambda: 16)
    with pytest.raises(MachineError, match="2 workers need about"):
        tenfold.train(model="mlp", data="digits", limit=40, workers=2, runs=tmp_path)
    assert not list(tmp_path.iterdir())
