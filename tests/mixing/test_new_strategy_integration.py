"""A strategy is one new file and one line in the catalog: both are added to a copy of the package, which then trains,
simulates and predicts with them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tenfold

HALVES = '''
"""Halves: the lower and the upper half of the ranks average among themselves."""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import Strategy
from tenfold.mixing.round import Round, group_round


@dataclass(frozen=True, kw_only=True)
class Halves(Strategy):
    """Each half takes its own mean; every other round is the mean of all."""

    name: ClassVar[str] = "halves"

    def round(self, r: int, n: int, /) -> Round:
        ranks = tuple(range(n))
        return group_round((ranks,) if r % 2 or n == 1 else (ranks[: n // 2], ranks[n // 2 :]))

    def period(self, _n: int, /) -> int:
        return 2
'''
RELAY = '''
"""Relay: a worker overwrites a common copy of the weights, or takes it."""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import AsynchronousStrategy
from tenfold.mixing.exchange import CENTRE, Exchange, ExchangeVectors


@dataclass(frozen=True, kw_only=True)
class Relay(AsynchronousStrategy):
    """Even ranks move the centre half of the way to their weights, odd ranks fetch it."""

    name: ClassVar[str] = "relay"
    has_centre: ClassVar[bool] = True

    every: int = 2

    def exchange(self, rank: int, step: int, _n: int, /) -> Exchange | None:
        even = rank % 2 == 0
        return None if step % self.every else Exchange(CENTRE, sends=even, receives=not even)

    def apply(self, exchange: Exchange, vectors: ExchangeVectors, _n: int, /) -> None:
        if exchange.sends:
            vectors.theirs.lerp_(vectors.mine, 0.5)
        else:
            vectors.mine.copy_(vectors.theirs)
'''
PROGRAM = """
import json
import tenfold

GROUP = {"count": 2, "step_seconds": 0.01, "link": "1gbe"}


def results(strategy):
    one = tenfold.Experiment(
        strategy=strategy, workers=2, sync_every=2, model="mlp", hidden=[8], data="digits", limit=200, epochs=2,
        threads=1, oversubscribe=True, engine="processes",
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
    print(json.dumps({strategy: results(strategy) for strategy in ("halves", "relay")}))
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package to which the two strategies were added."""
    folder = tmp_path_factory.mktemp("extended")
    package = folder / "tenfold"
    shutil.copytree(Path(tenfold.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    catalog = package / "common" / "catalog.py"
    last = '        "ad-psgd": "tenfold.mixing.strategies.ad_psgd:ADPSGD",\n'
    lines = [
        '        "halves": "tenfold.mixing.strategies.halves:Halves",\n',
        '        "relay": "tenfold.mixing.strategies.relay:Relay",\n',
    ]
    assert last in catalog.read_text()
    catalog.write_text(catalog.read_text().replace(last, last + "".join(lines)))
    (package / "mixing" / "strategies" / "halves.py").write_text(HALVES)
    (package / "mixing" / "strategies" / "relay.py").write_text(RELAY)
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.mark.timeout(180)
def test_one_file_and_one_line_train_simulate_and_predict(extended: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(extended / "program.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(extended)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    for strategy, results in found.items():
        (row,) = results["predicted"]
        assert results["finite"] == [True, True]
        assert row["strategy"] == strategy
        assert row["seconds"] > 0
    assert found["halves"]["alike"]  # without rounds, the order of exchanges is the machine's


def test_the_command_line_and_the_schema_know_the_names(extended: Path) -> None:
    program = (
        "from typer.testing import CliRunner; from tenfold.cli import app; "
        "from tenfold.experiment import Division; "
        "print(CliRunner().invoke(app, ['train', '--help'], terminal_width=200).output); "
        "print(Division.model_json_schema()['properties']['strategy']['enum'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(extended)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert all(ran.stdout.count(name) >= 2 for name in ("halves", "relay"))
