import os
import re
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from fake_machines import build_cgroup2, build_sys, layout, topologies, write
from forked import start_forked
from hypothesis import given
from hypothesis import strategies as st
from looped import looped

from tenfold.errors import MachineError
from tenfold.machine import cores
from tenfold.machine import cores as affinity
from tenfold.machine.cores import (
    NOT_PINNED,
    PINNING,
    CoreMap,
    Cpu,
    Topology,
    budget,
    parse_cpus,
    plan,
    usable_cpus,
    wait_policy_for_children,
    write_cpus,
)


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


class TestUsableCpus:
    @pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs an affinity mask")
    def test_the_mask_counts(self) -> None:
        assert usable_cpus() == tuple(sorted(os.sched_getaffinity(0)))


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
        ((8, 4, 3), "at most 2 threads"),
        ((2, 4, 1), "at most 2 workers"),
        ((2, 0), "at least 1"),
        ((2, 1, 0), "at least 1"),
    ],
)
def test_what_does_not_fit_is_explained(arguments: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(MachineError, match=re.escape(sentence)):
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


SERVER = Topology(layout(packages=2, nodes=1, cores=4, smt=2))


PLAIN = Topology(layout(packages=1, nodes=1, cores=8, smt=1))


WORKERS = st.integers(1, 12)


THREADS = st.integers(1, 5)


@pytest.mark.parametrize("policy", list(PINNING))
class TestEveryPolicy:
    @given(topology=topologies(), workers=WORKERS, threads=THREADS)
    def test_workers_get_allowed_cpus_and_share_none_when_they_fit(
        self, policy: str, topology: Topology, workers: int, threads: int
    ) -> None:
        core_map = plan(topology, workers, threads, policy)
        given_out = [cpu for cpus in core_map.workers for cpu in cpus]
        fits = workers * threads <= len(topology.cpus)
        assert len(core_map.workers) == (workers if policy != "none" else 0)
        assert set(given_out) <= set(topology.numbers)
        assert all(len(cpus) == len(set(cpus)) for cpus in core_map.workers)
        if policy == "none":
            assert given_out == []
            assert core_map.note == ""
        else:
            assert all(len(cpus) == min(threads, len(topology.cpus)) for cpus in core_map.workers)
            assert (len(given_out) == len(set(given_out))) or not fits
            assert bool(core_map.note) == (not fits)

    @given(topology=topologies(), threads=THREADS)
    def test_an_order_names_every_cpu_once_or_none(self, policy: str, topology: Topology, threads: int) -> None:
        order = PINNING[policy](topology, threads)
        assert sorted(order) in ([], list(topology.numbers))


class TestCompact:
    def test_siblings_come_together_and_the_first_node_first(self) -> None:
        assert plan(SERVER, 5, 1, "compact").workers == ((0,), (8,), (1,), (9,), (2,))
        assert plan(SERVER, 3, 4, "compact").workers == ((0, 8, 1, 9), (2, 10, 3, 11), (4, 12, 5, 13))

    def test_wrapping_is_said(self) -> None:
        core_map = plan(Topology(layout(1, 1, 2, 1)), 3, 1, "compact")
        assert core_map.workers == ((0,), (1,), (0,))
        assert core_map.note == "3 workers x 1 threads share 2 cpus"


class TestScatter:
    def test_sockets_take_turns_and_siblings_come_last(self) -> None:
        workers = plan(SERVER, 10, 1, "scatter").workers
        assert workers == ((0,), (4,), (1,), (5,), (2,), (6,), (3,), (7,), (8,), (12,))

    def test_the_threads_of_a_worker_stay_on_one_node(self) -> None:
        assert plan(SERVER, 4, 2, "scatter").workers == ((0, 1), (4, 5), (2, 3), (6, 7))

    def test_packages_take_turns_before_the_nodes_within_them(self) -> None:
        machine = Topology(layout(packages=2, nodes=2, cores=2, smt=1))
        assert plan(machine, 4, 1, "scatter").workers == ((0,), (4,), (2,), (6,))

    def test_a_small_node_does_not_bring_siblings_forward(self) -> None:
        cpus = tuple(cpu for cpu in SERVER.cpus if cpu.number in (0, 8, 4, 5, 6, 12, 13, 14))
        assert plan(Topology(cpus), 5, 1, "scatter").workers == ((0,), (4,), (5,), (6,), (8,))

    @given(topology=topologies())
    def test_one_thread_each_fills_physical_cores_first(self, topology: Topology) -> None:
        siblings = {cpu.number: cpu.siblings for cpu in topology.cpus}
        order = affinity.scatter(topology, 1)
        assert len({siblings[cpu] for cpu in order[: topology.physical]}) == topology.physical

    @given(shape=st.tuples(*[st.integers(1, 3)] * 4), workers=WORKERS)
    def test_nodes_are_loaded_evenly(self, shape: tuple[int, int, int, int], workers: int) -> None:
        topology = Topology(layout(*shape))
        node = {cpu.number: cpu.node for cpu in topology.cpus}
        order = affinity.scatter(topology, 1)[:workers]
        loads = Counter(node[cpu] for cpu in order)
        assert max(loads.values()) - min(loads[each] for each in set(node.values())) <= 1


class TestList:
    def test_the_list_of_the_paper(self) -> None:
        core_map = plan(PLAIN, 4, 1, "0,1,2,4")
        assert core_map == CoreMap("0,1,2,4", ((0,), (1,), (2,), (4,)))

    def test_ranges_are_dealt_in_order(self) -> None:
        assert plan(PLAIN, 2, 2, "4-6,0").workers == ((4, 5), (6, 0))

    def test_a_list_short_of_threads_is_split_not_shared(self) -> None:
        core_map = plan(PLAIN, 2, 4, "0-5")
        assert core_map.workers == ((0, 1, 2), (3, 4, 5))
        assert core_map.note == "each worker's 4 threads share 3 of the cpus listed"

    @given(data=st.data(), topology=topologies(), threads=THREADS)
    def test_workers_never_share_listed_cpus(self, data: st.DataObject, topology: Topology, threads: int) -> None:
        listed = data.draw(st.lists(st.sampled_from(topology.numbers), unique=True, min_size=1))
        workers = data.draw(st.integers(1, len(listed)))
        core_map = plan(topology, workers, threads, ",".join(map(str, listed)))
        given_out = [cpu for cpus in core_map.workers for cpu in cpus]
        assert given_out == listed[: len(given_out)]
        assert all(core_map.workers)


@looped(
    ("policy", "sentence"),
    [
        ("0,9,10", "0-7"),
        ("0,1,0,1", "more than once"),
        ("0-2", "at least 4"),
        ("0,one", "0-3,8"),
        ("3-0", "0-3,8"),
        ("skatter", "did you mean 'scatter'"),
    ],
)
def test_a_wrong_policy_is_explained(policy: str, sentence: str) -> None:
    with pytest.raises(MachineError, match=re.escape(sentence)):
        plan(PLAIN, 4, 1, policy)


@pytest.mark.parametrize(("workers", "threads"), [(0, 1), (1, 0)])
def test_nothing_cannot_be_placed(workers: int, threads: int) -> None:
    with pytest.raises(MachineError, match="both must be at least 1"):
        plan(PLAIN, workers, threads, "compact")


def test_each_worker_has_as_many_cpus_as_threads_or_none() -> None:
    assert plan(PLAIN, 2, 1, "none") == NOT_PINNED
    assert plan(PLAIN, 2, 3, "compact").workers == ((0, 1, 2), (3, 4, 5))


class TestApply:
    @pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity mask")
    def test_threads_that_already_run_are_pinned_too(self) -> None:
        before, done = os.sched_getaffinity(0), threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        try:
            assert affinity.apply((min(before),)) is None
            assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == {min(before)}
        finally:
            affinity.apply(tuple(before))
            done.set()
            thread.join()
        assert os.sched_getaffinity(0) == before

    def test_a_refusal_is_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(pid: int, cpus: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
        warning = "workers are not pinned: the system refused cpus 0-1 (Operation not permitted); set pin to 'none'"
        assert affinity.apply((0, 1)) == warning
