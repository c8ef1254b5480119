"""`tenfold launch`: what it shows and writes, and what it starts through a stand-in for ssh."""

import os
import re
import signal
import subprocess
from functools import partial
from pathlib import Path

import psutil
import pytest
from click.testing import Result
from command_line import assert_one_sentence, tenfold_
from forked import run_command, start_forked
from looped import looped
from waiting import wait_until

SSH = """#!/bin/sh
# options, host, command: says how it was called, and runs the command here
while true; do case "$1" in -tt) shift;; -o) shift 2;; *) break;; esac; done
echo "reached $1"
{what}
"""
LOCAL = 'exec sh -c "$2"'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lenet.toml").write_text('name = "lenet"\n')
    (tmp_path / "hosts.txt").write_text("node1 slots=2\nnode2 slots=2\n")
    return tmp_path


def fake_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, what: str = LOCAL) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(SSH.format(what=what))
    (folder / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def fake_python(folder: Path, text: str) -> str:
    """An interpreter that only says how it was called, and then does something."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\necho "called with $*"\n{text}\n')
    path.chmod(0o755)
    return str(path)


def launch(*arguments: str) -> Result:
    return tenfold_("launch", *arguments)


class TestShowing:
    def test_a_command_for_each_host(self) -> None:
        said = launch("lenet.toml", "--hosts", "hosts.txt", "--", "--strategy", "butterfly")
        lines = said.stdout.splitlines()
        assert [line for line in lines if line.startswith("#")] == ["# on node1", "# on node2"]
        for line in lines[1::2]:
            assert line.startswith("torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node1:29500")
            assert line.endswith("--nproc-per-node 2 -m tenfold train lenet.toml --strategy butterfly")

    def test_mpirun(self) -> None:
        said = launch("lenet.toml", "--hosts", "hosts.txt", "--launcher", "mpirun")
        line = "mpirun -n 4 --host node1:2,node2:2 python -m tenfold train lenet.toml"
        assert said.stdout.splitlines() == ["# on localhost", line]

    def test_a_script_of_ones_own(self, folder: Path) -> None:
        (folder / "loop.py").write_text("")
        assert "--nproc-per-node 2 loop.py" in launch("loop.py", "--hosts", "hosts.txt").stdout

    def test_written_to_a_file(self, folder: Path) -> None:
        said = launch("lenet.toml", "--hosts", "hosts.txt", "-o", "commands.sh")
        assert said.stdout.startswith("wrote commands.sh")
        assert (folder / "commands.sh").read_text().count("torchrun") == 2

    def test_the_slurm_script(self, folder: Path) -> None:
        (folder / "lenet.toml").write_text("[parallel]\nworkers = 8\n[machine]\nthreads = 2\n")
        assert launch("lenet.toml", "--slurm").stdout == "wrote lenet.sbatch; `sbatch lenet.sbatch` queues it\n"
        script = (folder / "lenet.sbatch").read_text()
        assert "#SBATCH --cpus-per-task=8" in script
        assert subprocess.run(["bash", "-n", "lenet.sbatch"], check=False).returncode == 0
        assert "exists; use -o lenet.sbatch" in launch("lenet.toml", "--slurm").stderr
        assert launch("lenet.toml", "--slurm", "--nodes", "4", "-o", "lenet.sbatch").exit_code == 0
        assert "#SBATCH --nodes=4" in (folder / "lenet.sbatch").read_text()

    def test_the_slurm_script_goes_by_what_train_is_told(self, folder: Path) -> None:
        (folder / "lenet.toml").write_text("[parallel]\nworkers = 3\n")
        said = launch(
            "lenet.toml", "--slurm", "--python", "/venv/bin/python", "--", "--workers", "8", "-s", "threads=2"
        )
        assert said.exit_code == 0
        script = (folder / "lenet.sbatch").read_text()
        assert "#SBATCH --cpus-per-task=8" in script
        assert "--nproc-per-node 4 " in script
        assert "/venv/bin/python -m torch.distributed.run" in script

    def test_hosts_are_checked_against_what_train_is_told(self, folder: Path) -> None:
        (folder / "lenet.toml").write_text("[parallel]\nworkers = 3\n")
        assert launch("lenet.toml", "--hosts", "hosts.txt", "--", "--workers", "4").exit_code == 0
        said = launch("lenet.toml", "--hosts", "hosts.txt", "--", "--set", "workers=5")
        assert "5 workers, but the hosts have 4 slots" in said.stderr
        assert "no such option: --wokers" in launch("lenet.toml", "--hosts", "hosts.txt", "--", "--wokers", "4").stderr


BAD: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "nothing to launch"),
    "nowhere": (["lenet.toml"], "neither --hosts nor --slurm"),
    "twice": (["lenet.toml", "--hosts", "hosts.txt", "--slurm"], "both --hosts and --slurm"),
    "slurm runs nothing": (["lenet.toml", "--slurm", "--run"], "give it to sbatch, without --run or mpirun"),
    "no file": (["lent.toml", "--hosts", "hosts.txt"], "there is no file lent.toml"),
    "no script": (["loop.py", "--hosts", "hosts.txt"], "there is no script loop.py"),
    "no hosts": (["lenet.toml", "--hosts", "host.txt"], "there is no hosts file host.txt"),
    "too many": (["three.toml", "--hosts", "hosts.txt"], "3 workers, but the hosts have 4 slots"),
    "uneven": (["three.toml", "--slurm"], "3 workers do not divide evenly among 2 nodes"),
    "nodes of hosts": (["lenet.toml", "--hosts", "hosts.txt", "--nodes", "3"], "--nodes is for --slurm"),
    "too many a node": (["three.toml", "--slurm", "--per-host", "2"], "3 workers, but 2 nodes have 4 slots"),
    "unwritable": (["lenet.toml", "--slurm", "-o", "/proc/job"], "/proc/job cannot be written"),
}


@looped("case", BAD)
def test_bad_input_is_one_sentence(case: str, folder: Path) -> None:
    (folder / "three.toml").write_text("[parallel]\nworkers = 3\n")
    arguments, expected = BAD[case]
    assert_one_sentence(launch(*arguments), expected)


@pytest.mark.timeout(60)
class TestRunning:
    def test_output_comes_with_the_hosts_name(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_ssh(folder, monkeypatch)
        python = fake_python(folder, "pwd")
        said = launch("lenet.toml", "--hosts", "hosts.txt", "--run", "--python", python)
        assert said.exit_code == 0
        for host in ("node1", "node2"):
            lines = [line for line in said.stdout.splitlines() if line.startswith(f"[{host}] ")]
            assert lines[0] == f"[{host}] reached {host}"
            assert f"--local-addr {host} " in lines[1]
            assert lines[2] == f"[{host}] {folder}"

    def test_this_machine_needs_no_ssh(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "hosts.txt").write_text("localhost slots=2\n")
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        said = launch("lenet.toml", "--hosts", "hosts.txt", "--run", "--python", fake_python(folder, ""))
        assert "[localhost] called with -m torch.distributed.run --standalone" in said.stdout

    def test_the_first_failure_ends_all_and_is_the_exit_code(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_ssh(folder, monkeypatch)
        python = fake_python(folder, 'case "$*" in *is_host=0*) exit 7;; esac; exec sleep 500')
        said = launch("lenet.toml", "--hosts", "hosts.txt", "--run", "--python", python)
        assert said.exit_code == 7
        assert "[node2] ended with exit code 7; ending the others" in said.stdout

    def test_a_host_that_cannot_be_reached(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_ssh(folder, monkeypatch, "echo 'ssh: no route to host'; exit 255")
        said = launch("lenet.toml", "--hosts", "hosts.txt", "--run")
        assert said.exit_code == 255
        assert "no route to host" in said.stdout

    def test_signals_are_left_as_they_were(self, folder: Path) -> None:
        (folder / "hosts.txt").write_text("localhost\n")
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
        launch("lenet.toml", "--hosts", "hosts.txt", "--run", "--python", fake_python(folder, ""))
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before

    @pytest.mark.parametrize(
        ("numbers", "ignored", "code"),
        [
            ([signal.SIGINT], [], 130),
            ([signal.SIGTERM], [], 143),
            ([signal.SIGHUP], [], 129),
            ([signal.SIGHUP, signal.SIGTERM], [signal.SIGHUP], 143),
        ],
        ids=["interrupt", "terminate", "hang up", "nohup"],
    )
    def test_a_signal_ends_all(
        self, numbers: list[int], ignored: list[int], code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_ssh(folder, monkeypatch)
        python = fake_python(folder, 'echo "pid $$"; exec sleep 500')
        command = ["launch", "lenet.toml", "--hosts", "hosts.txt", "--run", "--python", python]
        started = start_forked(partial(run_command, ignoring=ignored, PATH=os.environ["PATH"]), str(folder), *command)

        def pids() -> list[int]:
            said = folder / "out"
            return [int(number) for number in re.findall(r"pid (\d+)\n", said.read_text() if said.exists() else "")]

        wait_until(lambda: len(pids()) == 2)
        for number in numbers:
            os.kill(started.pid, number)
        started.join(30)
        assert started.exitcode == code
        for pid in pids():
            wait_until(lambda pid=pid: not psutil.pid_exists(pid))
