"""The code of docs/extending.md, installed as a package with entry points into a folder of its own, and used."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
PROGRAM = """
import json
import tenfold
from tenfold.cli import app
from typer.testing import CliRunner

GROUP = {"count": 2, "step_seconds": 0.01, "link": "1gbe"}
SMALL = {"model": "linear", "data": "circle", "optimizer": "sign-sgd", "metrics": ["accuracy", "median_error"]}
SMALL |= {"epochs": 2, "threads": 1}


PAIR = {"workers": 2, "sync_every": 2, "oversubscribe": True}


def results(strategy, **fields):
    one = tenfold.Experiment(**SMALL, strategy=strategy, workers=2, sync_every=2, oversubscribe=True, **fields)
    trained = tenfold.train(one, runs="runs")
    simulated = tenfold.simulate(one, cluster={"groups": [GROUP]}, runs="runs")
    predicted = tenfold.forecast(one, cluster={"groups": [GROUP]})
    return {
        "recorded": trained.experiment.parallel.strategy if isinstance(strategy, str) else "",
        "alike": all(bool((trained.weights[key] == simulated.weights[key]).all()) for key in trained.weights),
        "metrics": sorted(trained.result["metrics"]) if "metrics" in trained.result else [],
        "seconds": [row["seconds"] for row in predicted.records()],
    }


if __name__ == "__main__":
    from extras import Halves

    by_name = results("halves")
    found = {
        "name": by_name,
        "object": results(Halves()),
        "trained": [
            tenfold.train(**SMALL, **PAIR, strategy=given, runs="runs").status for given in (Halves, "extras:Halves")
        ],
        "asynchronous": results("relay", strategy_options={"every": 3})["seconds"],
        "engine": tenfold.train(**SMALL, engine="alone", runs="runs").status,
        "transport": str(tenfold.Experiment(transport="ordered").machine.transport),
        "labels": [row["strategy"] for row in tenfold.compare(
            tenfold.Experiment(**SMALL, workers=2, sync_every=2, oversubscribe=True), strategy=["ring", "halves"],
            runs="runs").records()],
        "folder": CliRunner().invoke(app, ["folder", "--run", "1"]).output,
        "refused": CliRunner().invoke(app, ["train", "--set", "engine=alone", "--epochs", "11"]).output,
        "help": CliRunner().invoke(app, ["train", "--help"], terminal_width=200).output,
    }
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which the page's code was installed, as a package with the page's entry points."""
    folder = tmp_path_factory.mktemp("installed")
    page = PAGE.read_text()
    code = "\n\n".join(re.findall(r'```python title="extras.py"\n(.*?)```', page, re.DOTALL))
    (settings,) = re.findall(r'```toml title="pyproject.toml"\n(.*?)```', page, re.DOTALL)
    project = tomllib.loads(settings)["project"]
    points = "\n".join(
        f"[{group}]\n" + "\n".join(f"{name} = {path}" for name, path in members.items())
        for group, members in project["entry-points"].items()
    )
    wheel, info = folder / "tenfold_extras-1.0-py3-none-any.whl", "tenfold_extras-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("extras.py", code)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", points)
        archive.writestr(
            f"{info}/RECORD", f"extras.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/entry_points.txt,,\n"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*command, str(folder / "site"), str(wheel)], check=True, timeout=120, capture_output=True)
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.mark.timeout(240)
def test_a_package_of_a_stranger_plugs_in(installed: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(installed / "program.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed / "site"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["trained"] == ["finished", "finished"]
    for way in ("name", "object"):
        assert found[way]["alike"], way
        assert all(seconds > 0 for seconds in found[way]["seconds"]), way
    assert found["name"]["recorded"] == "halves"
    assert all(seconds > 0 for seconds in found["asynchronous"])
    assert found["engine"] == "finished"
    assert found["transport"] == "ordered"
    assert "halves" in found["labels"]
    assert found["folder"].strip().startswith(str(tmp_path / "runs" / "1-"))
    assert "10 epochs" in found["refused"]
    assert all(name in found["help"] for name in ("halves", "relay", "sign-sgd"))
