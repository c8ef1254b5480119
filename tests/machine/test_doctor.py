import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_machines import build_cgroup2, build_sys, layout, write

from tenfold.machine import cores, doctor
from tenfold.machine.devices import Gpu
from tenfold.machine.doctor import Finding, examine
from tenfold.runs.tables import Abilities

GB = 10**9


class Patient:
    """A healthy eight-core machine without MPI, whose parts a test can spoil."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.patch = monkeypatch
        build_sys(root, layout(1, 1, 8, 1))
        write(root / "proc/cpuinfo", "model name: Fast\nflags: avx2 avx512_bf16")
        (root / "dev/shm").mkdir(parents=True)
        self.cpus(8, usable=8)
        self.memory(total=64 * GB, available=60 * GB)
        self.disk(shared=32 * GB, free=100 * GB)
        self.threads(8)
        self.programs({})
        self.load(0.2)
        self.files(4096)
        monkeypatch.setattr(doctor.devices, "gpus", list)
        monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)

    def cpus(self, machine: int, usable: int) -> None:
        self.patch.setattr(doctor.psutil, "cpu_count", lambda: machine)
        self.patch.setattr(cores, "usable_cpus", lambda: tuple(range(usable)))

    def memory(self, total: int, available: int) -> None:
        self.patch.setattr(doctor.psutil, "virtual_memory", lambda: SimpleNamespace(total=total, available=available))

    def disk(self, shared: int, free: int) -> None:
        usage = SimpleNamespace(total=shared, free=free)
        self.patch.setattr(doctor.shutil, "disk_usage", lambda path: usage)

    def threads(self, count: int, **variables: str) -> None:
        self.patch.setattr(torch, "get_num_threads", lambda: count)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            self.patch.delenv(name, raising=False)
        for name, value in variables.items():
            self.patch.setenv(name, value)

    def load(self, processes: float) -> None:
        self.patch.setattr(doctor.os, "getloadavg", lambda: (processes, 0.0, 0.0))
        self.patch.setattr(cores, "running_elsewhere", lambda: processes)

    def files(self, limit: int) -> None:
        self.patch.setattr(resource, "getrlimit", lambda _: (limit, limit))
        self.patch.setattr(cores, "_open_files", lambda: 30)

    def programs(self, paths: dict[str, str], beside: dict[str, str] | None = None) -> None:
        found = {None: paths}
        self.patch.setattr(doctor.shutil, "which", lambda name, path=None: found.get(path, beside or {}).get(name))

    def look(self, topic: str) -> Finding:
        return next(finding for finding in examine(self.root / "runs", self.root) if finding.topic == topic)


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patient:
    return Patient(tmp_path, monkeypatch)


def test_a_healthy_machine_lacks_only_mpi(patient: Patient) -> None:
    findings = examine(patient.root, patient.root)
    assert {finding.topic for finding in findings if finding.status != "ok"} == {"mpi4py", "mpirun"}
    assert all("pip install" in finding.advice for finding in findings if finding.status != "ok")


class TestCores:
    def test_all_usable(self, patient: Patient) -> None:
        found = "8 of 8 logical cpus usable, 8 physical, NUMA nodes: 1, packages: 1; budget: 8"
        assert patient.look("cores") == Finding("cores", found)

    def test_a_quota(self, patient: Patient) -> None:
        build_cgroup2(patient.root, "/", {"": {"cpu.max": "250000 100000"}})
        finding = patient.look("cores")
        assert finding.status == "note"
        assert "cgroup quota: 2.5; budget: 2" in finding.found
        assert "--cpus" in finding.advice


class TestThreads:
    def test_too_many_by_environment(self, patient: Patient) -> None:
        patient.threads(8, OMP_NUM_THREADS="64")
        finding = patient.look("threads")
        assert (finding.status, finding.found) == ("problem", "torch uses 8, OMP_NUM_THREADS=64")
        assert finding.advice.endswith("set OMP_NUM_THREADS to 8")


class TestMemoryAndDisk:
    def test_little_memory(self, patient: Patient) -> None:
        patient.memory(total=4 * GB, available=GB)
        assert patient.look("memory").status == "problem"
        assert "container" not in patient.look("memory").advice

    def test_a_tight_container(self, patient: Patient) -> None:
        build_cgroup2(patient.root, "/", {"": {"memory.max": str(GB)}})
        finding = patient.look("memory")
        assert finding.status == "problem"
        assert finding.found.endswith("cgroup limit 1.0 GB")
        assert "container's limit" in finding.advice

    @pytest.mark.parametrize(("size", "status"), [(64 * 2**20, "problem"), (GB // 2, "note"), (2 * GB, "ok")])
    def test_shared_memory(self, patient: Patient, size: int, status: str) -> None:
        patient.disk(shared=size, free=100 * GB)
        finding = patient.look("shared memory")
        assert finding.status == status
        assert ("--shm-size" in finding.advice) == (status != "ok")

    @pytest.mark.parametrize(("free", "status"), [(10**8, "problem"), (2 * GB, "note"), (9 * GB, "ok")])
    def test_disk(self, patient: Patient, free: int, status: str) -> None:
        patient.disk(shared=GB, free=free)
        assert patient.look("disk").status == status

    @pytest.mark.parametrize(("locks", "status"), [(True, "note"), (False, "problem")])
    def test_the_file_system_of_the_runs(self, patient: Patient, locks: bool, status: str) -> None:
        able = Abilities("nfs4", write_ahead=False, locks=locks)
        patient.patch.setattr(doctor, "find_abilities", lambda folder: able)
        assert patient.look("disk").status == status
        assert "nfs4" in patient.look("disk").found


class TestCompute:
    def test_gpus(self, patient: Patient) -> None:
        patient.patch.setattr(doctor.devices, "gpus", lambda: [Gpu("cuda:0", "Card", 80 * GB)])
        assert patient.look("gpus") == Finding("gpus", "cuda:0: Card, 80.0 GB")

    @pytest.mark.parametrize(("built", "advice"), [(False, "install a CUDA build"), (True, "check the driver")])
    def test_a_card_that_torch_does_not_use(self, patient: Patient, built: bool, advice: str) -> None:
        write(patient.root / "dev/nvidia0", "")
        patient.patch.setattr(doctor.devices, "built_for_gpus", lambda: built)
        finding = patient.look("gpus")
        assert finding.status == "problem"
        assert finding.advice.startswith(advice)


class TestMpi:
    @pytest.fixture(autouse=True)
    def installed(self, patient: Patient) -> None:
        patient.patch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
        patient.patch.setattr(doctor.metadata, "version", lambda name: "4.1")
        patient.programs({"mpirun": "/opt/bin/mpirun"})

    def test_a_library_that_does_not_load(self, patient: Patient) -> None:
        patient.patch.setattr(doctor, "_output", lambda *command: None)
        assert patient.look("mpi4py").status == "problem"
        assert patient.look("mpirun").status == "problem"


class TestLoad:
    def test_a_busy_machine_is_said_to_be_so(self, patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        patient.load(7.0)
        finding = patient.look("load")
        assert (finding.status, finding.found) == (
            "note",
            "7.0 runnable processes on 8 cpus (mean of the last minute)",
        )
        assert "times and speedups measured now are wrong" in finding.advice
        assert "OMP_WAIT_POLICY=PASSIVE" in finding.advice
        patient.load(30.0)
        assert patient.look("load").status == "problem"


@pytest.mark.parametrize(
    ("limit", "status"), [(64, "note"), (40, "problem"), (4096, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_a_low_limit_of_open_files(patient: Patient, limit: int, status: str) -> None:
    patient.files(limit)
    finding = patient.look("open files")
    assert finding.status == status
    assert ("ulimit -n 4096" in finding.advice) == (status != "ok")
