"""The network between two hosts is cut; hosts are network namespaces of this machine."""

import subprocess
import sys
import time

from attempt import LIMIT, LOSS_LIMIT, Attempt, Fell, Skipped, save_experiment


def cut(attempt: Attempt) -> None:
    """Two ranks on two hosts; after a random time their link goes down, and both must end and say so."""
    from network_hosts import ENDLESS, Hosts

    hosts = Hosts(2)
    launchers: list[subprocess.Popen[str]] = []
    try:
        problem = hosts.make()
        if problem:
            raise Skipped(problem)
        for number in range(2):
            own = attempt.folder / f"host{number}"
            own.mkdir()
            save_experiment(own / "small.toml", ENDLESS)
            command = ["-m", "tenfold", "train", "small.toml", "--quiet"]
            launchers.append(hosts.torchrun(number, own, *command, python=[sys.executable]))
        until = time.monotonic() + LIMIT
        while not list(attempt.folder.glob("host0/runs/*/checkpoint/manifest.json")):
            if time.monotonic() > until or any(launcher.poll() is not None for launcher in launchers):
                raise Fell("no epoch was completed before the network was cut")
            time.sleep(0.05)
        time.sleep(attempt.random.uniform(0, 2))
        hosts.cut()
        until = time.monotonic() + LOSS_LIMIT
        attempt.environment["TENFOLD_RUNS"] = str(attempt.folder / "host0" / "runs")
        while time.monotonic() < until:
            said = attempt.forked("show", "last")
            if "interrupted" in said.text:
                break
            time.sleep(0.3)
        else:
            raise Fell(f"{LOSS_LIMIT:g} s after the cut the run is not shown as interrupted")
        attempt.check_said(said, (0,))
    finally:
        for launcher in launchers:
            launcher.kill()
        hosts.remove()
