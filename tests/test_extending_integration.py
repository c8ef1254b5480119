"""The diffs of docs/extending.md, applied to a copy of the package: one new file and one line for each member."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tenfold

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
PROGRAM = """
import json
import tenfold
from tenfold.cli import app
from tenfold.common.catalog import NETWORK_TRANSPORTS
from tenfold.report.pages.run_pages import write_report
from typer.testing import CliRunner

GROUP = {"count": 2, "step_seconds": 0.01, "link": "1gbe"}
SMALL = {"model": "linear", "data": "circle", "optimizer": "sign-sgd", "epochs": 2, "threads": 1}


def results(strategy):
    one = tenfold.Experiment(
        **SMALL, strategy=strategy, workers=2, sync_every=2, oversubscribe=True, engine="processes"
    )
    trained = tenfold.train(one, runs="runs")
    simulated = tenfold.simulate(one, cluster={"groups": [GROUP]}, runs="runs")
    predicted = tenfold.forecast(one, cluster={"groups": [GROUP]})
    return {
        "finite": [all(bool(t.isfinite().all()) for t in run.weights.values()) for run in (trained, simulated)],
        "alike": all(bool((trained.weights[key] == simulated.weights[key]).all()) for key in trained.weights),
        "predicted": predicted.records(),
    }


if __name__ == "__main__":
    found = {strategy: results(strategy) for strategy in ("halves", "relay")}
    compared = tenfold.compare(tenfold.Experiment(**SMALL), lr=[0.01, 0.1], runs="runs")
    page = write_report(compared, "page.html").read_text()
    print(json.dumps({
        "strategies": found,
        "transport": [tenfold.Experiment(transport="ordered").machine.transport, NETWORK_TRANSPORTS["ordered"].name],
        "drawn": "steps of each setting" in page,
        "folder": CliRunner().invoke(app, ["folder", "1"]).output,
        "help": CliRunner().invoke(app, ["train", "--help"], terminal_width=200).output,
        "schema": str(tenfold.Experiment.model_json_schema()),
    }))
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package to which all diffs were applied."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(Path(tenfold.__file__).parent, folder / "tenfold")  # with what is compiled already
    for diff in re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL):
        changed = re.findall(r"^\+\+\+ src/(\S+)\n(.*?)(?=^\+\+\+ |\Z)", diff, re.DOTALL | re.MULTILINE)
        assert [(folder / path).exists() for path, _ in changed] == [False, True], "a new file, then one line"
        (new, content), (registry, lines) = changed
        (folder / new).write_text("".join(line[1:] + "\n" for line in content.splitlines()))
        before, added = lines.splitlines()
        text = (folder / registry).read_text()
        assert text.count(f"{before[1:]}\n") == 1, f"{registry} has no line {before[1:]}"
        (folder / registry).write_text(text.replace(f"{before[1:]}\n", f"{before[1:]}\n{added[1:]}\n"))
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.mark.timeout(240)
def test_one_file_and_one_line_are_enough(extended: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(extended / "program.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(extended), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    for strategy, results in found["strategies"].items():
        (row,) = results["predicted"]
        assert results["finite"] == [True, True]
        assert row["strategy"] == strategy
        assert row["seconds"] > 0
    assert found["strategies"]["halves"]["alike"]  # without rounds, the order of exchanges is the machine's
    assert found["transport"] == ["ordered", "ordered"]
    assert found["drawn"]
    assert found["folder"].strip().startswith(str(tmp_path / "runs" / "1-"))
    assert all(name in found["help"] and name in found["schema"] for name in ("halves", "relay", "sign-sgd"))
    assert all(name in found["help"] + found["schema"] for name in ("ordered", "circle", "'linear'"))
