"""What a comparison does not run: settings that are the same as others; what it runs again: doubtful ones."""

import tenfold
from tenfold.api.compare import drop_repeated, experiments_of
from tenfold.reports.comparison import Comparison

BASE = tenfold.Experiment(model="mlp", data="digits", limit=100, epochs=1, threads=1)


def planned(**grid):
    return drop_repeated(experiments_of(BASE, grid, repeats=1))


def test_strategies_that_are_the_same_exchange_are_run_once():
    kept, told = planned(workers=[1, 2], strategy=["allreduce", "ring", "none", "butterfly"], sync_every=[4])
    assert [(item.parallel.workers, item.parallel.strategy) for item in kept] == [
        (1, "allreduce"),
        (2, "allreduce"),
        (2, "none"),
    ]
    assert told == ["with 2 workers, ring and butterfly are the same exchange as allreduce: run once"]


def test_those_that_differ_otherwise_are_all_run():
    kept, told = planned(workers=[4], strategy=["allreduce", "ring", "butterfly"], sync_every=[4])
    assert len(kept) == 3
    assert told == []
    kept, _ = planned(workers=[2], strategy=["allreduce", "ring"], sync_every=[4, 8])
    assert len(kept) == 2


def test_doubtful_runs_are_run_again_when_asked(tmp_path, monkeypatch):
    first = tenfold.compare(BASE, lr=[0.01, 0.02], runs=tmp_path)
    assert [run.id for run in first.runs] == [1, 2]
    monkeypatch.setattr(Comparison, "doubtful", property(lambda self: self.runs[1:]))
    again = tenfold.compare(BASE, lr=[0.01, 0.02], runs=tmp_path, rerun_doubtful=True)
    assert [run.id for run in again.runs] == [1, 3]
    assert [run.id for run in tenfold.compare(BASE, lr=[0.01, 0.02], runs=tmp_path).runs] == [1, 3]
