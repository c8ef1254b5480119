"""What the page of a sweep shows."""

from typing import Any

import pytest

import tenfold
from tenfold.reports.sweep import sweep_plots

SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 120, "validation_fraction": 0.3, "threads": 1}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tenfold.Sweep:
    space = {"lr": [0.001, 0.01, 0.1], "optimizer": ["sgd", "adam"], "batch_size": [16, 32], "sampler": "grid"}
    return tenfold.sweep(**SMALL, **space, epochs=1, runs=tmp_path_factory.mktemp("runs"), progress=False)


def test_every_trial_is_in_the_plots(sweep: tenfold.Sweep) -> None:
    charts: dict[str, Any] = sweep_plots(sweep)
    assert list(charts) == ["history", "parallel", "importance"]
    best, finished = charts["history"].lines
    assert len(finished.x) == 12
    assert best.y == sorted(best.y)
    assert [axis.name for axis in charts["parallel"].axes] == ["lr", "optimizer", "batch_size", "validation accuracy"]
    assert all(0 <= place <= 1 for line in charts["parallel"].lines for place in line.places)
    assert charts["parallel"].lines[-1].note.startswith(f"trial {sweep.best.number} ")
    assert sum(cells[0][0].end for _, cells in charts["importance"].rows) == pytest.approx(1)
