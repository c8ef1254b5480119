from pathlib import Path

import pytest

from tenfold.machine import energy
from tenfold.machine.energy import EnergyMeter


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A processor that counts to 100 J, and has counted 90."""
    domain = tmp_path / "intel-rapl:0"
    domain.mkdir()
    (domain / "max_energy_range_uj").write_text("100000000\n")
    (domain / "energy_uj").write_text("90000000\n")
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of it
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy, "_gpus", dict)
    return domain


def test_a_counter_that_begins_again_goes_on(package: Path) -> None:
    meter = EnergyMeter()
    (package / "energy_uj").write_text("5000000\n")
    assert meter.joules() == pytest.approx(15)


def test_gpus_are_added(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([1_000.0, 1_007.0])
    monkeypatch.setattr(energy, "_gpus", lambda: {"gpu 0": (next(used), 0.0)})
    assert EnergyMeter().joules() == pytest.approx(7)


def test_a_machine_that_counts_nothing_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy, "_gpus", dict)
    assert EnergyMeter().joules() is None
