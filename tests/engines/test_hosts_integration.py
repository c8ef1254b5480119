"""Runs over several hosts, which are network namespaces; skipped with a reason where they cannot be made."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import train
from failing_ranks import failing
from forked import forked_python
from launchers import mpirun
from launching import end_ranks, start_rank
from network_hosts import ENDLESS, FIELDS, Hosts, quietly
from waiting import wait_until

import tenfold
from tenfold.machine.liveness import is_alive

pytestmark = pytest.mark.timeout(120)


def start_all(hosts: Hosts, folder: Path, fields: dict[str, Any]) -> list["subprocess.Popen[str]"]:
    """Start a rank on each host; each host has a folder of its own, as machines without a common disk do."""
    command = ["-m", "tenfold", "train", "small.toml"]
    numbers = range(len(hosts.names))
    return [hosts.torchrun(number, host_folder(folder, number, fields), *command) for number in numbers]


def host_folder(folder: Path, number: int, fields: dict[str, Any]) -> Path:
    """Return the folder of a host with the experiment in it."""
    own = folder / f"host{number}"
    own.mkdir(exist_ok=True)
    tenfold.Experiment(**fields).save(own / "small.toml")
    return own


def test_two_hosts_of_two_ranks_give_the_weights_of_four_processes(hosts: Hosts, tmp_path: Path) -> None:
    hosts.slow_down()
    ranks = []
    for rank in range(4):
        folder, address = host_folder(tmp_path, rank // 2, FIELDS), (hosts.addresses[0], 29500)
        command = ["train", "small.toml"]
        ranks.append(start_rank(rank, 4, 2, address, folder, hosts.names[rank // 2], command))
    codes = end_ranks(ranks)
    said = [(tmp_path / f"host{rank // 2}" / f"output-{rank}").read_text() for rank in range(4)]
    outputs = [said[0] + said[1], said[2] + said[3]]
    assert codes == [0] * 4, outputs
    (run,) = tenfold.list_runs(runs=tmp_path / "host0" / "runs")
    assert run.metadata["launch"]["hosts"] == {"host0": [0, 1], "host1": [2, 3]}
    assert outputs[0].count("epoch 2/2") == 1
    assert "epoch" not in outputs[1]
    assert not (tmp_path / "host1" / "runs").exists() or not list((tmp_path / "host1" / "runs").rglob("*.pt"))
    assert_as_in_processes(run, 4)


def assert_as_in_processes(run: tenfold.Run, workers: int) -> None:
    process = train(**FIELDS, workers=workers, engine="processes")
    for name, weights in process.weights.items():
        torch.testing.assert_close(run.weights[name], weights, rtol=1e-5, atol=1e-6)


def test_mpirun_over_two_hosts(hosts: Hosts, tmp_path: Path) -> None:
    """Open MPI reaches the other host by a program that takes the place of ssh."""
    command = mpirun()
    if "--oversubscribe" not in command:
        pytest.skip("only Open MPI takes another program than ssh")
    shell = tmp_path / "shell"
    cases = [
        f'{address}) set -- {shlex.join(hosts.inside(number))} sh -c "$*";;'
        for number, address in enumerate(hosts.addresses)
    ]
    shell.write_text("#!/bin/sh\nhost=$1\nshift\ncase $host in\n" + "\n".join(cases) + '\nesac\nexec "$@"\n')
    shell.chmod(0o755)
    tenfold.Experiment(**FIELDS).save(tmp_path / "small.toml")
    network = "10.213.0.0/24"
    command += ["--prtemca", "plm_ssh_agent", str(shell), "--prtemca", "prte_if_include", network]
    command += ["--mca", "btl_tcp_if_include", network, "--mca", "btl", "self,tcp", "--mca", "pml", "ob1"]
    command += [
        "--host",
        ",".join(f"{address}:1" for address in hosts.addresses),
        "--map-by",
        "node",
        "-x",
        "PYTHONPATH",
    ]
    launcher = hosts.start(0, tmp_path, *command, *forked_python(), "-m", "tenfold", "train", "small.toml")
    output = launcher.communicate(timeout=60)[0]
    assert launcher.returncode == 0, output
    (run,) = tenfold.list_runs(runs=tmp_path / "runs")
    assert run.metadata["launch"]["hosts"] == {"host0": [0], "host1": [1]}
    assert run.metadata["launch"]["between_hosts"] == "mpi"
    assert_as_in_processes(run, 2)


def test_who_is_cut_off_is_named_on_both_sides(hosts: Hosts, tmp_path: Path) -> None:
    launchers = start_all(hosts, tmp_path, ENDLESS)
    wait_for_an_epoch(tmp_path / "host0" / "runs", launchers)
    hosts.cut()
    runs = tmp_path / "host0" / "runs"
    wait_until(lambda: tenfold.open_run(runs=runs).status != "running", seconds=10, pause=0.2)
    run = tenfold.open_run(runs=runs)
    assert run.status == "interrupted"
    lost = re.match(r"worker 1 \(process (\d+) on host1\) has sent no heartbeat for", run.error)
    assert lost, run.error
    wait_until(lambda: not is_alive(int(lost[1])), seconds=20)  # its launcher, cut off as well, may not have noticed
    hosts.remove()
    assert "[rank 1] error: worker 0 (process " in launchers[1].communicate(timeout=10)[0]


def test_a_rank_of_another_host_may_let_no_thread_run(hosts: Hosts, tmp_path: Path) -> None:
    fields = failing("c call", 1, 2, stall_after=30) | {"workers": 2}
    launchers = start_all(hosts, tmp_path, fields)
    outputs = [launcher.communicate(timeout=60)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert tenfold.open_run(runs=tmp_path / "host0" / "runs").status == "finished"


def wait_for_an_epoch(runs: Path, launchers: list["subprocess.Popen[str]"]) -> None:
    def is_finished() -> bool:
        for launcher in launchers:
            assert launcher.poll() is None, launcher.communicate()[0]
        return (runs / "tenfold.db").exists() and any(run.history for run in tenfold.list_runs(runs=runs))

    wait_until(is_finished, pause=0.2)


def test_a_rank_of_another_host_that_is_stopped_is_named(hosts: Hosts, tmp_path: Path) -> None:
    launchers = start_all(hosts, tmp_path, failing("SIGSTOP", 1, 1) | {"workers": 2})
    for launcher in launchers:
        launcher.communicate(timeout=60)
    run = tenfold.open_run(runs=tmp_path / "host0" / "runs")
    assert run.status == "interrupted"
    assert run.error.startswith("worker 1 (process ")


def test_nothing_is_left_of_the_hosts() -> None:
    left = quietly("ip", "netns", "list").stdout if shutil.which("ip") else ""
    assert f"tenfold-{os.getpid()}-" not in left
