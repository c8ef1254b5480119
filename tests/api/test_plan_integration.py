"""A plan made by real probes, on a cluster whose step times are given."""

from pathlib import Path

import pytest

import tenfold
from tenfold.cluster import Cluster
from tenfold.errors import ExperimentError
from tenfold.prediction.planning import evidence, planner
from tenfold.prediction.planning import planner as trial_search

NODES = {"groups": [{"count": 2, "step_seconds": 0.005, "link": "infiniband"}]}


@pytest.mark.timeout(120)
def test_a_plan_learns_prints_and_can_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_search, "MOST_PROBED", 2)
    monkeypatch.setattr(evidence, "SEEDS", 2)
    monkeypatch.setattr(evidence, "MOST_SEEDS", 2)
    base = tenfold.Experiment(model="mlp", data="digits", limit=400, hidden=[16])
    plan = tenfold.plan(base, target=0.5, cluster=NODES, budget=600, on="processes", runs=tmp_path / "runs")
    assert plan.table[0]["chosen"]
    assert plan.interval[0] <= plan.predicted_seconds <= plan.interval[1]
    assert plan.predicted_seconds <= plan.total_seconds
    assert plan.cost_seconds > 0
    assert plan.best.training.target == 0.5
    assert plan.best.machine.engine == "auto"
    assert plan.best.data.validation_fraction == pytest.approx(1 / 3, abs=1e-4)  # what the target is measured on
    text = " ".join(str(plan).split())
    assert "tenfold twin" not in text  # which trains on this machine
    assert "planning took" in text
    assert "on processes a first run" in text
    assert not (tmp_path / "runs" / "tenfold.db").exists()
    assert plan.to_markdown().startswith("| ")
    assert "<table>" in plan._repr_html_()
    page = plan.report(tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "pays off" in page
    assert "validation accuracy" in page
    plan.best.save(tmp_path / "best.toml")
    assert tenfold.Experiment.load(tmp_path / "best.toml") == plan.best


def test_a_cluster_may_be_one_of_those_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Cluster] = []

    def search(*_: object, cluster: Cluster, **__: object) -> None:
        asked.append(cluster)
        raise ExperimentError("enough")

    monkeypatch.setattr(planner, "search", search)
    for given in ("dsmp-c1", NODES, Cluster(**NODES)):
        with pytest.raises(ExperimentError, match="enough"):
            tenfold.plan(model="mlp", data="digits", limit=40, target=0.5, cluster=given)
    assert [item.workers for item in asked] == [8, 2, 2]


def test_a_plan_needs_a_target() -> None:
    with pytest.raises(ExperimentError, match="target"):
        tenfold.plan(tenfold.Experiment(model="mlp", data="digits"))


@pytest.mark.parametrize(
    ("options", "said"), [({"budget": 0}, "more than 0 seconds"), ({"max_workers": 0}, "at least 1")]
)
def test_a_plan_needs_time_and_a_worker(options: dict[str, int], said: str) -> None:
    with pytest.raises(tenfold.TenfoldError, match=said):
        tenfold.plan(tenfold.Experiment(model="mlp", data="digits"), target=0.5, **options)
