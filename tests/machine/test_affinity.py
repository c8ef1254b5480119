import json
import os
import re
import threading
from collections import Counter
from dataclasses import asdict

import pytest
from fake_machines import layout, topologies
from hypothesis import given
from hypothesis import strategies as st
from looped import looped

from tenfold.errors import MachineError
from tenfold.machine import cores as affinity
from tenfold.machine.cores import NOT_PINNED, PINNING, CoreMap, Topology, plan

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

    def test_a_map_goes_through_json(self, policy: str) -> None:
        core_map = plan(SERVER, 4, 2, policy)
        assert json.loads(json.dumps(asdict(core_map)))["workers"] == [list(cpus) for cpus in core_map.workers]


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
        ("0,9,10", "the cpu list '0,9,10' names 9-10; this process may use 0-7"),
        ("0,1,0,1", "the cpu list '0,1,0,1' names 0-1 more than once; name each cpu once"),
        ("0-2", "the cpu list '0-2' has 3 cpus for 4 workers; name at least 4"),
        ("0,one", "cannot read the cpu list '0,one'; write numbers and ranges such as '0-3,8'"),
        ("3-0", "cannot read the cpu list '3-0'; write numbers and ranges such as '0-3,8'"),
        (
            "skatter",
            "unknown pin 'skatter'; did you mean 'scatter'? known: compact, scatter, none, "
            "or a list of cpus such as '0-3,8'",
        ),
    ],
)
def test_a_wrong_policy_is_explained(policy: str, sentence: str) -> None:
    with pytest.raises(MachineError, match=f"^{re.escape(sentence)}$"):
        plan(PLAIN, 4, 1, policy)


@pytest.mark.parametrize(("workers", "threads"), [(0, 1), (1, 0)])
def test_nothing_cannot_be_placed(workers: int, threads: int) -> None:
    with pytest.raises(MachineError, match="both must be at least 1"):
        plan(PLAIN, workers, threads, "compact")


def test_each_worker_has_as_many_cpus_as_threads_or_none() -> None:
    assert plan(PLAIN, 2, 1, "none") == NOT_PINNED
    assert plan(PLAIN, 2, 3, "compact").workers == ((0, 1, 2), (3, 4, 5))


class TestApply:
    def test_no_cpus_leave_the_process_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(affinity, "_pin_threads", lambda cpus: pytest.fail("pinned"))
        assert affinity.apply(()) is None

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

    def test_windows_pins_by_psutil(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[list[int]] = []
        monkeypatch.delattr(os, "sched_setaffinity", raising=False)
        monkeypatch.setattr(
            affinity.psutil.Process, "cpu_affinity", lambda self, cpus: asked.append(cpus), raising=False
        )
        assert affinity.apply((2, 3)) is None
        assert asked == [[2, 3]]

    def test_macos_cannot_pin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "sched_setaffinity", raising=False)
        monkeypatch.delattr(affinity.psutil.Process, "cpu_affinity", raising=False)
        assert affinity.apply((0,)) == (
            "workers are not pinned: this system has no way to pin a process; set pin to 'none'"
        )
