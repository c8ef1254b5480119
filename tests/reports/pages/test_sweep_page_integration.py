"""What the page of a sweep shows, and what the board says of one that is running."""

from pathlib import Path
from typing import Any

import pytest
from browser import NEEDS_BROWSER, started_browser

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


@pytest.mark.timeout(120)
@NEEDS_BROWSER[0]
@NEEDS_BROWSER[1]
def test_the_page_draws_them(sweep: tenfold.Sweep, tmp_path: Path) -> None:
    path = sweep.report(tmp_path / "report.html")
    with started_browser() as browser:
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector(".parallel .trial")
        assert page.locator(".parallel .trial").count() == 12
        assert page.locator("[data-plot=history] canvas").count() == 1
        assert page.locator("[data-part=trials] tbody tr").count() == 12
        page.locator(".parallel .trial").last.hover(force=True)
        assert not errors
