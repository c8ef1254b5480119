"""The code of docs/extending.md, installed as a package with entry points into a folder of its own, and used."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tenfold

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
SOURCES, SUPPORT = Path(tenfold.__file__).parents[1], Path(__file__).parent / "support"
PROGRAM = """
import json
import os
import socket
import sys
from pathlib import Path

import program_imports  # the ranks are forked after that, and the workers from a server that does the same
import tenfold
from tenfold.workers import fork_server

fork_server.PRELOADED = program_imports.__name__

SMALL = {"model": "linear", "data": "circle", "epochs": 2, "threads": 1, "oversubscribe": True}
NAMED = {"optimizer": "sign-sgd", "schedule": "stairs", "loss": "smooth", "metrics": ["accuracy", "median_error"]}
PAIR = SMALL | NAMED | {"workers": 2, "sync_every": 4}


def rank(number, port):
    # One of three ranks of a launcher, whose weights are averaged by the package's transport.
    import extras

    places = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3}
    os.environ.update({name: str(value) for name, value in places.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sums, all_reduce = [], extras.OrderedSums.all_reduce
    extras.OrderedSums.all_reduce = lambda self, tensor: sums.append(tensor.numel()) or all_reduce(self, tensor)
    fields = SMALL | {"optimizer": "sgd", "sync_every": 4, "strategy": "allreduce"}
    run = tenfold.train(**fields, transport="ordered", runs="launched")
    total = sum(float(value.double().sum()) for value in run.weights.values())
    Path(f"rank-{number}.json").write_text(json.dumps({"sums": len(sums), "total": total, "status": run.status}))


def start_ranks():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for number in range(3):
        if os.fork() == 0:
            rank(number, port)
            sys.exit()


def same(one, other):
    return all(bool((one.weights[key] == other.weights[key]).all()) for key in one.weights)


def main():
    start_ranks()
    import extras
    from tenfold.cli import app
    from typer.testing import CliRunner

    def command(*words):
        done = CliRunner().invoke(app, [*words], terminal_width=200)
        return {"code": done.exit_code, "output": done.output}

    halves = tenfold.train(**PAIR, strategy="halves", runs="runs")
    averaged = tenfold.train(
        **PAIR, strategy="allreduce", outer=extras.HalfWay(share=0.5), compression=extras.FP16, runs="runs"
    )
    named = {"strategy": "allreduce", "outer": "half-way", "compression": "fp16"}
    asynchronous = {"strategy": "relay", "strategy_options": {"every": 3}}
    words = [f"--set={name}={json.dumps(value)}" for name, value in PAIR.items()]
    done = {
        "recorded": halves.experiment.parallel.strategy,
        "twins": [
            same(halves, tenfold.simulate(**PAIR, strategy=extras.Halves(), cluster="pair", runs="runs")),
            same(averaged, tenfold.simulate(**PAIR, **named, cluster="pair", runs="runs")),
            same(averaged, halves),
        ],
        "asynchronous": tenfold.train(**PAIR, **asynchronous, runs="runs").status,
        "seconds": [
            row["seconds"]
            for one in (named, asynchronous, {"strategy": "halves"})
            for row in tenfold.forecast(**PAIR, **one, cluster="pair").records()
        ],
        "typed": command("train", *words, "--strategy", "extras:Halves", "--runs", "typed"),
        "engine": [
            row["seconds"] > 0
            for row in tenfold.compare(**SMALL, engine="alone", lr=[0.1, 0.2], on="one-process", runs="runs").records()
        ],
        "folder": command("folder", "--run", "1"),
        "broken": command("broken"),
        "refused": command("train", "--set", "engine=alone", "--epochs", "11"),
        "help": command("train", "--help"),
    }
    assert [os.wait()[1] for _ in range(3)] == [0, 0, 0]
    print(json.dumps(done | {"ranks": [json.loads(Path(f"rank-{number}.json").read_text()) for number in range(3)]}))


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the page's code is, as an installer leaves a package with the page's entry points."""
    folder = tmp_path_factory.mktemp("installed")
    page = PAGE.read_text()
    code = "\n\n".join(re.findall(r'```python title="extras.py"\n(.*?)```', page, re.DOTALL))
    (settings,) = re.findall(r'```toml title="pyproject.toml"\n(.*?)```', page, re.DOTALL)
    project = tomllib.loads(settings)["project"]
    project["entry-points"]["tenfold.commands"]["broken"] = "extras:not_there"
    points = "\n".join(
        f"[{group}]\n" + "\n".join(f"{name} = {path}" for name, path in members.items())
        for group, members in project["entry-points"].items()
    )
    info = folder / "site" / "tenfold_extras-1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "extras.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.fixture(scope="module")
def results(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the package's members did: in a program with worker processes, and three ranks beside it."""
    folder = tmp_path_factory.mktemp("used")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (installed / "site", SOURCES, SUPPORT))),
        "COLUMNS": "200",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, str(installed / "program.py")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr[-3000:]
    whole: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return whole | {"folder_of_runs": str(folder / "runs")}


@pytest.mark.timeout(240)
def test_strategy_outer_optimizer_and_compression_give_the_same_weights_for_virtual_workers(
    results: dict[str, Any],
) -> None:
    assert results["twins"] == [True, True, False]
    assert results["recorded"] == "halves"
    assert results["asynchronous"] == "finished"
    assert len(results["seconds"]) == 3
    assert all(seconds > 0 for seconds in results["seconds"])


def test_the_transport_averages_the_ranks_of_a_launcher(results: dict[str, Any]) -> None:
    first, second, third = results["ranks"]
    assert first["sums"] > 0
    assert first == second == third


def test_engine_and_executor_train_the_settings_of_a_comparison(results: dict[str, Any]) -> None:
    assert results["engine"] == [True, True]


def test_the_command_line_knows_the_package(results: dict[str, Any]) -> None:
    assert results["typed"]["code"] == 0, results["typed"]["output"]
    assert "median_error" in results["typed"]["output"]
    assert results["folder"]["output"].strip().startswith(f"{results['folder_of_runs']}/1-")
    assert results["refused"]["code"] == results["broken"]["code"] == 2
    assert "tenfold-extras" in results["broken"]["output"]
    assert "10 epochs" in results["refused"]["output"]
    assert all(name in results["help"]["output"] for name in ("halves", "relay", "sign-sgd"))
