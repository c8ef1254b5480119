"""Finding runs by a filter, labelling and removing them."""

import json
from pathlib import Path

import pytest
from command_line import tenfold_

import tenfold
from tenfold.runs import Store


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two finished runs, made without training."""
    store = Store(tmp_path / "runs")
    for workers in (1, 4):
        experiment = tenfold.Experiment(model="mlp", data="digits", workers=workers)
        run = store.create(experiment, kind="train", metadata={})
        store.update(run, result={"metrics": {"accuracy": 0.9}, "seconds": 1.0}, status="finished")
    return store.folder


def test_runs_are_found_by_a_filter_and_by_their_tags(runs: Path) -> None:
    assert tenfold_("tag", "2", "paper", "base").stdout == "run 2: base, paper\n"
    assert tenfold_("untag", "2", "base").stdout == "run 2: paper\n"
    assert tenfold_("untag", "2", "base").stderr == "error: run 2 has no tag 'base'; it has paper\n"
    said = tenfold_("report", "--filter", "tag=paper", "-o", "paper.html", "--json")
    assert json.loads(said.stdout)["runs"] == [2]
    assert "no runs match tag=none-such" in tenfold_("report", "--filter", "tag=none-such").stderr
    assert tenfold_("note", "last", "h\udcc3\udca4llo").stdout == "run 2: hällo\n"  # as a C locale passes it on
    assert tenfold_("note", "last", "with the fan on").stdout == "run 2: with the fan on\n"
    said = tenfold_("runs", "--filter", "workers>=4 tag=paper").stdout
    assert "#paper" in said
    assert [run.id for run in tenfold.list_runs(filter="workers>=4 tag=paper")] == [2]
    assert "with the fan on" in tenfold_("show", "2").stdout
    assert tenfold_("runs", "-f", "workers>4").stdout == "no runs match workers>4\n"
    refused = tenfold_("runs", "-f", "wrokers>4")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)


def test_removing_asks_first(runs: Path) -> None:
    asked = tenfold_("remove", "1")
    assert asked.exit_code == 1
    assert "nothing was removed; --yes does it without asking" in asked.stderr
    assert len(tenfold.list_runs()) == 2
    assert "removed 1 run; it is in runs/trash" in tenfold_("remove", "--filter", "workers=1", "--yes").stdout
    assert [run.id for run in tenfold.list_runs()] == [2]
    asked = tenfold_("remove", "--empty-trash")
    assert asked.exit_code == 1
    assert "delete 1 folder in the trash" in asked.stderr
    assert "nothing was deleted; --yes does it without asking" in asked.stderr
    assert (runs / "trash").exists()
    assert "emptied the trash: 1 folder" in tenfold_("remove", "--empty-trash", "--yes").stdout
    assert not (runs / "trash").exists()
    assert "no runs given" in tenfold_("remove").stderr
