"""The benchmarks fit the package as it is now: all start, and those that take no time run."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from looped import looped

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _with_their_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@looped("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_benchmark_explains_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        load(name).main()
    assert ended.value.code == 0


def test_the_clock_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tmp_path / "simulator.json"
    options = ["--workers", "4", "--steps", "20", "--many-steps", "0", "--repeats", "1", "--json", str(found)]
    monkeypatch.setattr(sys, "argv", ["simulator", *options])
    load("simulator").main()
    figures = json.loads(found.read_text())
    assert all(row["alone"][1] > 0 for row in figures["rates"])
    assert all(row["events"] > 0 for row in figures["heap"])


def test_the_crossover_is_where_sandblaster_stays_faster(tmp_path: Path) -> None:
    distbelief = load("distbelief")
    seconds = {
        "downpour": [2.0, 1.0, 0.8, None],
        "synchronous": [1.0, 0.5, 0.4, 0.5],
        "sandblaster": [9.0, 0.9, 0.9, 0.2],
    }
    rows = [
        {"side": side, "workers": n, "seconds": each}
        for side, values in seconds.items()
        for n, each in zip((1, 16, 64, 256), values, strict=True)
    ]
    assert distbelief.crossover(rows, "downpour") == 256
    assert distbelief.crossover(rows, "synchronous") == 256
    assert distbelief.crossover([*rows[:-1], rows[-1] | {"seconds": None}], "downpour") is None
    measured = [{"side": "downpour", "workers": 1, "seconds": 2.1}]
    figures = {"data": "digits", "link": "10gbe", "target": 0.9, "predicted": rows, "measured": measured}
    distbelief.plot(figures, tmp_path / "crossover.png")
    assert (tmp_path / "crossover.png").stat().st_size > 10_000
