import json
import os
from pathlib import Path

import pytest
import torch
from fake_machines import build_cgroup2, build_sys, layout, write

from tenfold.machine import cores
from tenfold.machine.metadata import (
    EnergyMeter,
    collect_metadata,
    has_bf16,
    in_container,
    instruction_sets,
    machine_load,
    processor_name,
)

X86 = "processor\t: 0\nmodel name\t: Epyc 9000\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile amx_bf16"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41"


def test_the_metadata_of_this_machine_are_json_and_complete() -> None:
    found = collect_metadata()
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"host", "platform", "container", "python", "cpu", "memory", "torch", "gpus", "packages"}
    assert found["torch"]["version"] == torch.__version__
    assert found["packages"]["torch"]
    assert found["cpu"]["budget"] >= 1


def test_the_metadata_of_a_container_on_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_sys(tmp_path, layout(2, 1, 4, 2))
    build_cgroup2(tmp_path, "/", {"": {"cpu.max": "350000 100000", "memory.max": "8000000000"}})
    write(tmp_path / "proc/cpuinfo", X86)
    write(tmp_path / ".dockerenv", "")
    monkeypatch.setattr(cores, "usable_cpus", lambda: (0, 1, 4, 8))
    found = collect_metadata(tmp_path)
    expected = {
        "model": "Epyc 9000",
        "usable": "0-1,4,8",
        "usable_physical": 3,
        "numa_nodes": 2,
        "packages": 2,
        "quota": 3.5,
        "budget": 3,
    }
    assert expected.items() <= found["cpu"].items()
    assert found["memory"]["limit"] == 8_000_000_000
    assert found["container"] is True


class TestProcessor:
    def test_x86(self, tmp_path: Path) -> None:
        write(tmp_path / "proc/cpuinfo", f"{X86}\n\nprocessor\t: 1\nmodel name\t: Other")
        assert processor_name(tmp_path) == "Epyc 9000"
        assert instruction_sets(tmp_path) == ["avx2", "avx512f", "avx512_bf16", "amx", "amx_bf16"]
        assert has_bf16(instruction_sets(tmp_path))

    def test_arm(self, tmp_path: Path) -> None:
        write(tmp_path / "proc/cpuinfo", ARM)
        assert instruction_sets(tmp_path) == ["neon", "sve", "arm_bf16"]
        assert has_bf16(instruction_sets(tmp_path))
        assert processor_name(tmp_path)

    def test_without_proc_torch_is_asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        known = {"cpu_name": "M9", "avx2": False, "neon": True, "sve": False, "num_sockets": 1}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
        assert processor_name(tmp_path) == "M9"
        assert instruction_sets(tmp_path) == ["neon"]
        assert not has_bf16(instruction_sets(tmp_path))

    def test_a_torch_that_cannot_say_is_no_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
        assert instruction_sets(tmp_path) == []
        assert processor_name(tmp_path)


class TestContainer:
    @pytest.fixture(autouse=True)
    def plain_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.delenv("container", raising=False)

    def test_a_plain_machine(self, tmp_path: Path) -> None:
        assert not in_container(tmp_path)
        write(tmp_path / "proc/1/cgroup", "0::/init.scope")
        assert not in_container(tmp_path)

    @pytest.mark.parametrize(
        ("file", "text"),
        [(".dockerenv", ""), ("run/.containerenv", ""), ("proc/1/cgroup", "4:cpu:/kubepods/pod1/abc")],
    )
    def test_traces_of_a_container(self, tmp_path: Path, file: str, text: str) -> None:
        write(tmp_path / file, text)
        assert in_container(tmp_path)

    def test_the_environment_tells(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        assert in_container(tmp_path)


def test_the_load_is_not_negative():
    assert machine_load() >= 0


def test_a_system_without_a_load_average_has_none(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", Path("/nowhere").stat)
    assert machine_load() is None


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A processor that counts to 100 J, and has counted 90."""
    domain = tmp_path / "intel-rapl:0"
    domain.mkdir()
    (domain / "max_energy_range_uj").write_text("100000000\n")
    (domain / "energy_uj").write_text("90000000\n")
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of it
    monkeypatch.setattr("tenfold.machine.metadata.POWERCAP", tmp_path)
    monkeypatch.setattr("tenfold.machine.metadata._gpus", dict)
    return domain


def test_a_counter_that_begins_again_goes_on(package: Path) -> None:
    meter = EnergyMeter()
    (package / "energy_uj").write_text("5000000\n")
    assert meter.joules() == pytest.approx(15)


def test_gpus_are_added(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([1_000.0, 1_007.0])
    monkeypatch.setattr("tenfold.machine.metadata._gpus", lambda: {"gpu 0": (next(used), 0.0)})
    assert EnergyMeter().joules() == pytest.approx(7)


def test_a_machine_that_counts_nothing_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenfold.machine.metadata.POWERCAP", tmp_path)
    monkeypatch.setattr("tenfold.machine.metadata._gpus", dict)
    assert EnergyMeter().joules() is None
