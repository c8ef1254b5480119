import os
from pathlib import Path

import pytest
from fake_machines import build_cgroup1, build_cgroup2, build_sys, layout, write
from hypothesis import given
from hypothesis import strategies as st

from tenfold.machine import cgroups, cores
from tenfold.machine.cores import Cpu, Topology, budget, parse_cpus, usable_cpus, write_cpus


@given(st.lists(st.integers(0, 300), unique=True, min_size=1))
def test_cpu_lists_survive_writing_and_reading(cpus: list[int]) -> None:
    assert parse_cpus(write_cpus(cpus)) == tuple(cpus)


def test_cpu_lists_are_written_short_and_in_order() -> None:
    assert write_cpus((0, 1, 2, 4)) == "0-2,4"
    assert write_cpus((4, 0, 1)) == "4,0-1"
    assert write_cpus(()) == ""


@pytest.mark.parametrize("text", ["", "a", "3-1", "0,,1", "-1", "0-9999999999", "1-", "0x3"])
def test_nonsense_is_no_cpu_list(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_cpus(text)


class TestTopology:
    def test_two_sockets_of_four_cores_with_smt(self, tmp_path: Path) -> None:
        cpus = layout(packages=2, nodes=1, cores=4, smt=2)
        build_sys(tmp_path, cpus)
        topology = Topology.read(tmp_path, range(16))
        assert topology == Topology(cpus)
        assert (len(topology.cpus), topology.physical, topology.nodes, topology.packages) == (16, 8, 2, 2)
        assert topology.cpus[3] == Cpu(3, package=0, node=0, siblings=(3, 11))

    def test_one_core(self, tmp_path: Path) -> None:
        build_sys(tmp_path, layout(1, 1, 1, 1))
        assert Topology.read(tmp_path, [0]).cpus == (Cpu(0, 0, 0, (0,)),)

    def test_a_hybrid_processor_with_smt_on_some_cores_only(self, tmp_path: Path) -> None:
        fast = [Cpu(number, 0, 0, (number // 2 * 2, number // 2 * 2 + 1)) for number in range(4)]
        slow = [Cpu(number, 0, 0, (number,)) for number in range(4, 8)]
        build_sys(tmp_path, (*fast, *slow))
        topology = Topology.read(tmp_path, range(8))
        assert topology.cpus == (*fast, *slow)
        assert topology.physical == 6

    def test_only_allowed_cpus_are_listed(self, tmp_path: Path) -> None:
        build_sys(tmp_path, layout(2, 1, 4, 2))
        topology = Topology.read(tmp_path, [12, 1, 9, 1])
        assert topology.numbers == (1, 9, 12)
        assert (topology.physical, topology.nodes) == (2, 2)

    def test_missing_files_make_a_cpu_a_core_of_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "sys/devices/system/cpu/cpu1").mkdir(parents=True)
        write(tmp_path / "sys/devices/system/cpu/cpu0/topology/physical_package_id", "-1")
        write(tmp_path / "sys/devices/system/node/node1/cpulist", "")
        assert Topology.read(tmp_path, [0, 1]).cpus == (Cpu(0, 0, 0, (0,)), Cpu(1, 0, 0, (1,)))

    @pytest.mark.parametrize(("system", "physical"), [("Windows", 2), ("Darwin", 4)])
    def test_without_sys_the_system_is_asked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, physical: int
    ) -> None:
        monkeypatch.setattr(cores.platform, "system", lambda: system)
        monkeypatch.setattr(cores.psutil, "cpu_count", lambda logical=True: 4 if logical else 2)
        topology = Topology.read(tmp_path, range(4))
        assert topology.numbers == (0, 1, 2, 3)
        assert topology.physical == physical


class TestUsableCpus:
    @pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs an affinity mask")
    def test_the_mask_counts(self) -> None:
        assert usable_cpus() == tuple(sorted(os.sched_getaffinity(0)))

    def test_windows_asks_psutil(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(cores.psutil.Process, "cpu_affinity", lambda self: [3, 1], raising=False)
        assert usable_cpus() == (1, 3)

    def test_macos_has_no_mask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.delattr(cores.psutil.Process, "cpu_affinity", raising=False)
        monkeypatch.setattr(cores.psutil, "cpu_count", lambda: 3)
        assert usable_cpus() == (0, 1, 2)


class TestBudget:
    def test_without_a_quota_the_mask_counts(self, tmp_path: Path) -> None:
        assert budget(tmp_path, range(5)) == 5

    @pytest.mark.parametrize(
        ("maximum", "expected"),
        [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 8), ("300000 100000", 3)],
    )
    def test_a_quota_is_rounded_down_but_never_to_nothing(self, tmp_path: Path, maximum: str, expected: int) -> None:
        build_cgroup2(tmp_path, "/", {"": {"cpu.max": maximum}})
        assert budget(tmp_path, range(8)) == expected

    def test_the_machine_is_never_asked_how_many_cpus_it_has(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "cpu_count", lambda: 1)
        assert budget(tmp_path, range(6)) == 6

    def test_this_machine_gives_at_least_one(self) -> None:
        assert 1 <= budget() <= len(usable_cpus())


class TestCgroups:
    def test_the_tightest_of_nested_quotas_counts(self, tmp_path: Path) -> None:
        limits = {
            "pods": {"cpu.max": "400000 100000"},
            "pods/one": {"cpu.max": "150000 100000"},
            "pods/one/job": {"cpu.max": "max 100000"},
        }
        build_cgroup2(tmp_path, "/pods/one/job", limits)
        assert cgroups.cpu_quota(tmp_path) == 1.5

    def test_quotas_of_other_groups_do_not_count(self, tmp_path: Path) -> None:
        build_cgroup2(tmp_path, "/mine", {"mine": {"cpu.max": "max 100000"}, "theirs": {"cpu.max": "100000 100000"}})
        assert cgroups.cpu_quota(tmp_path) is None

    def test_version_1_quotas_nest_as_well(self, tmp_path: Path) -> None:
        limits = {
            "docker": {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
            "docker/abc": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
        }
        build_cgroup1(tmp_path, "/docker/abc", limits)
        assert cgroups.cpu_quota(tmp_path) == 3

    @pytest.mark.parametrize("build", [build_cgroup1, build_cgroup2])
    @pytest.mark.parametrize(("path", "shown"), [("/docker/abc", "/docker/abc"), ("/docker/abc", "/"), ("/../x", "/")])
    def test_a_container_that_sees_only_its_own_group(self, tmp_path: Path, build, path: str, shown: str) -> None:
        files = {"cpu.max": "200000 100000"}
        if build is build_cgroup1:
            files = {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}
        build(tmp_path, path, {"": files}, shown=shown)
        assert cgroups.cpu_quota(tmp_path) == 2

    def test_memory_in_use_is_not_left_but_cached_files_are(self, tmp_path: Path) -> None:
        used = {"memory.current": "3000", "memory.stat": "anon 1500\ninactive_file 1000"}
        build_cgroup2(tmp_path / "two", "/a", {"": {"memory.max": "9000"}, "a": {"memory.max": "4096"} | used})
        assert cgroups.memory_left(tmp_path / "two") == 4096 - 2000
        build_cgroup2(tmp_path / "free", "/", {"": {"memory.max": "max"} | used})
        assert cgroups.memory_left(tmp_path / "free") is None

    def test_memory_limits_of_both_versions(self, tmp_path: Path) -> None:
        build_cgroup2(tmp_path / "two", "/a/b", {"a": {"memory.max": "4096"}, "a/b": {"memory.max": "max"}})
        build_cgroup1(tmp_path / "one", "/a", {"": {"memory.limit_in_bytes": "9223372036854771712"}})
        assert cgroups.memory_limit(tmp_path / "two") == 4096
        assert cgroups.memory_limit(tmp_path / "one") is None

    def test_no_cgroups_no_limits(self, tmp_path: Path) -> None:
        assert cgroups.cpu_quota(tmp_path) is None
        assert cgroups.memory_limit(tmp_path) is None
