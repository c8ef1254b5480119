"""What the system allows: the limit of open files, and the workers that it allows."""

import resource
from pathlib import Path

import pytest
from fake_machines import build_cgroup1, build_cgroup2, write

from tenfold.errors import MachineError
from tenfold.machine import cores


@pytest.fixture(autouse=True)
def _thirty_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_open_files", lambda: 30)


def limited(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))


def test_too_many_workers_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 64)
    cores.check_open_files(4)
    with pytest.raises(MachineError, match="at most 4 workers"):
        cores.check_open_files(16)


def test_a_limit_too_low_for_any_worker_is_only_to_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 32)
    with pytest.raises(MachineError, match="ulimit") as error:
        cores.check_open_files(2)
    assert "at most" not in str(error.value)


def test_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, resource.RLIM_INFINITY)
    assert cores.open_file_limit() is None
    cores.check_open_files(10**6)


class TestCgroups:
    def test_the_tightest_of_nested_quotas_counts(self, tmp_path: Path) -> None:
        allowed = {
            "pods": {"cpu.max": "400000 100000"},
            "pods/one": {"cpu.max": "150000 100000"},
            "pods/one/job": {"cpu.max": "max 100000"},
        }
        build_cgroup2(tmp_path, "/pods/one/job", allowed)
        assert cores.cpu_quota(tmp_path) == 1.5

    def test_quotas_of_other_groups_do_not_count(self, tmp_path: Path) -> None:
        build_cgroup2(tmp_path, "/mine", {"mine": {"cpu.max": "max 100000"}, "theirs": {"cpu.max": "100000 100000"}})
        assert cores.cpu_quota(tmp_path) is None

    def test_version_1_quotas_nest_as_well(self, tmp_path: Path) -> None:
        allowed = {
            "docker": {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
            "docker/abc": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
        }
        build_cgroup1(tmp_path, "/docker/abc", allowed)
        assert cores.cpu_quota(tmp_path) == 3

    @pytest.mark.parametrize("build", [build_cgroup1, build_cgroup2])
    @pytest.mark.parametrize(("path", "shown"), [("/docker/abc", "/docker/abc"), ("/docker/abc", "/"), ("/../x", "/")])
    def test_a_container_that_sees_only_its_own_group(self, tmp_path: Path, build, path: str, shown: str) -> None:
        files = {"cpu.max": "200000 100000"}
        if build is build_cgroup1:
            files = {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}
        build(tmp_path, path, {"": files}, shown=shown)
        assert cores.cpu_quota(tmp_path) == 2

    def test_memory_in_use_is_not_left_but_cached_files_are(self, tmp_path: Path) -> None:
        used = {"memory.current": "3000", "memory.stat": "anon 1500\ninactive_file 1000"}
        build_cgroup2(tmp_path / "two", "/a", {"": {"memory.max": "9000"}, "a": {"memory.max": "4096"} | used})
        assert cores.memory_left(tmp_path / "two") == 4096 - 2000
        build_cgroup2(tmp_path / "free", "/", {"": {"memory.max": "max"} | used})
        assert cores.memory_left(tmp_path / "free") is None

    def test_memory_limits_of_both_versions(self, tmp_path: Path) -> None:
        build_cgroup2(tmp_path / "two", "/a/b", {"a": {"memory.max": "4096"}, "a/b": {"memory.max": "max"}})
        build_cgroup1(tmp_path / "one", "/a", {"": {"memory.limit_in_bytes": "9223372036854771712"}})
        assert cores.memory_limit(tmp_path / "two") == 4096
        assert cores.memory_limit(tmp_path / "one") is None

    def test_no_cgroups_no_limits(self, tmp_path: Path) -> None:
        assert cores.cpu_quota(tmp_path) is None
        assert cores.memory_limit(tmp_path) is None


def test_kills_for_lack_of_memory_are_counted(tmp_path: Path) -> None:
    assert cores.count_out_of_memory_kills(tmp_path / "none") == 0
    events = "low 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
    build_cgroup2(tmp_path / "two", "/a", {"a": {"memory.events": events}, "": {"memory.events": "oom_kill 9"}})
    assert cores.count_out_of_memory_kills(tmp_path / "two") == 2
    build_cgroup1(tmp_path / "one", "/a", {"a": {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5"}})
    assert cores.count_out_of_memory_kills(tmp_path / "one") == 5
    write(tmp_path / "vm" / "proc/vmstat", "nr_free_pages 10\noom_kill 7\n")
    assert cores.count_out_of_memory_kills(tmp_path / "vm") == 7
