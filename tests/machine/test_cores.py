import os
import re
import sys
from pathlib import Path

import psutil
import pytest
import torch
from fake_machines import build_cgroup2, build_sys, layout, write
from forked import start_forked
from hypothesis import given
from hypothesis import strategies as st
from looped import looped

from tenfold.errors import MachineError
from tenfold.machine import cores
from tenfold.machine.cores import Cpu, Topology, budget, parse_cpus, usable_cpus, wait_policy_for_children, write_cpus


@given(st.lists(st.integers(0, 300), unique=True, min_size=1))
def test_cpu_lists_survive_writing_and_reading(cpus: list[int]) -> None:
    assert parse_cpus(write_cpus(cpus)) == tuple(cpus)


def test_cpu_lists_are_written_short_and_in_order() -> None:
    assert write_cpus((0, 1, 2, 4)) == "0-2,4"
    assert write_cpus((4, 0, 1)) == "4,0-1"
    assert write_cpus(()) == ""


@looped("text", ["", "a", "3-1", "0,,1", "-1", "0-9999999999", "1-", "0x3"])
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
        monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 4 if logical else 2)
        topology = Topology.read(tmp_path, range(4))
        assert topology.numbers == (0, 1, 2, 3)
        assert topology.physical == physical


class TestUsableCpus:
    @pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs an affinity mask")
    def test_the_mask_counts(self) -> None:
        assert usable_cpus() == tuple(sorted(os.sched_getaffinity(0)))

    def test_windows_asks_psutil(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [3, 1], raising=False)
        assert usable_cpus() == (1, 3)

    def test_macos_has_no_mask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.delattr(psutil.Process, "cpu_affinity", raising=False)
        monkeypatch.setattr(psutil, "cpu_count", lambda: 3)
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


@given(budget=st.integers(1, 256), workers=st.integers(1, 256))
def test_an_equal_share_fits_the_budget_unless_there_are_more_workers_than_cores(budget: int, workers: int) -> None:
    each = cores.share(budget, workers)
    assert each >= 1
    assert workers * each <= max(budget, workers)
    assert workers * (each + 1) > budget


@given(budget=st.integers(1, 64), workers=st.integers(1, 64), asked=st.integers(1, 64))
def test_threads_that_fit_are_given_and_others_only_on_purpose(budget: int, workers: int, asked: int) -> None:
    assert cores.share(budget, workers, asked, oversubscribe=True) == asked
    if workers * asked <= budget:
        assert cores.share(budget, workers, asked) == asked
    else:
        with pytest.raises(MachineError, match="oversubscribe"):
            cores.share(budget, workers, asked)


@looped(
    ("arguments", "sentence"),
    [
        (
            (8, 4, 3),
            "4 workers x 3 threads need 12 cores, but this process may use 8; "
            "use at most 2 threads each, or set oversubscribe to true",
        ),
        (
            (2, 4, 1),
            "4 workers x 1 threads need 4 cores, but this process may use 2; "
            "use at most 2 workers of 1 thread, or set oversubscribe to true",
        ),
        ((2, 0), "cannot share 2 cores among 0 workers; there must be at least 1"),
        ((2, 1, 0), "cannot give each worker 0 threads; there must be at least 1"),
    ],
)
def test_what_does_not_fit_is_explained(arguments: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(MachineError, match=f"^{re.escape(sentence)}$"):
        cores.share(*arguments)


class TestWaiting:
    @pytest.mark.parametrize(
        ("load", "now", "policy"),
        [(0.2, 0.0, None), (7.0, 7.2, "PASSIVE"), (7.0, 0.4, None), (7.0, None, "PASSIVE")],
        ids=["idle", "busy", "no longer busy", "busy by the last minute"],
    )
    def test_threads_sleep_on_a_busy_machine_only(
        self, load: float, now: float | None, policy: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
        monkeypatch.setattr(cores, "running_elsewhere", lambda: now)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        with wait_policy_for_children():
            assert os.environ.get("OMP_WAIT_POLICY") == policy
        assert "OMP_WAIT_POLICY" not in os.environ

    def test_what_the_user_set_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
        monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
        with wait_policy_for_children():
            assert os.environ["OMP_WAIT_POLICY"] == "active"
        assert os.environ["OMP_WAIT_POLICY"] == "active"


@pytest.mark.parametrize(("load", "policy"), [(100.0, "PASSIVE"), (0.0, None)])
def test_threads_sleep_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch, load: float, policy: str | None) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(cores, "running_elsewhere", lambda: load)
    monkeypatch.setattr(os, "environ", {})
    cores.set_wait_policy()
    assert "OMP_WAIT_POLICY" not in os.environ  # torch has read it already
    monkeypatch.delitem(sys.modules, "torch")
    cores.set_wait_policy()
    assert os.environ.get("OMP_WAIT_POLICY") == policy


@pytest.mark.timeout(60)
def test_only_a_process_forked_from_one_that_uses_torch_is_left_with_one_thread() -> None:
    before = torch.get_num_threads()
    cores.set_threads(3)
    assert cores.use_threads_that_exist()
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)
    child = os.fork()
    if not child:
        cores.set_threads(3)
        os._exit(0 if torch.get_num_threads() == 1 and not cores.use_threads_that_exist() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    program = (
        "import os, torch; from tenfold.machine import cores; cores.set_threads(3); os._exit(torch.get_num_threads())"
    )
    of_server = start_forked(exec, program, {})
    of_server.join()
    assert of_server.exitcode == 3
