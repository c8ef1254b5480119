"""Hosts that are network namespaces of this machine, joined by a switch.

Each has a name and a network of its own, so the ranks believe to be on different machines.
"""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from engine_models import LAWFUL
from forked import forked_python
from launching import environment

FIELDS = LAWFUL | {"epochs": 2, "sync_every": 2, "threads": 1, "oversubscribe": True, "strategy": "butterfly"}
FIELDS |= {"optimizer": "sgd", "lr": 0.05}
ENDLESS = FIELDS | {"epochs": 100_000}


def quietly(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Hosts:
    """Namespaces tenfold-<pid>-0, -1, ... on one bridge, with the addresses 10.213.0.1, .2, ..."""

    def __init__(self, count: int, cluster: int = 0) -> None:
        """Name the hosts; several clusters of one process are told apart by their number."""
        mark = f"{os.getpid() % 10**5}{cluster or ''}"
        self.names = [f"tenfold-{mark}-{number}" for number in range(count)]
        self.addresses = [f"10.213.0.{number + 1}" for number in range(count)]
        self.switch = f"tenfold-{mark}-switch"
        self.ends = [f"tf{mark}h{number}" for number in range(count)]

    def make(self) -> str:
        """Make the hosts; return why it cannot be done, if so."""
        for program in ("ip", "unshare", "nsenter"):
            if shutil.which(program) is None:
                return f"there is no `{program}` on this machine"
        if os.geteuid() != 0:
            return "network namespaces need root"
        within = ["ip", "-n", self.switch]
        steps = [["ip", "netns", "add", name] for name in (*self.names, self.switch)]
        steps += [[*within, "link", "add", "bridge", "type", "bridge"], [*within, "link", "set", "bridge", "up"]]
        for name, end, address in zip(self.names, self.ends, self.addresses, strict=True):
            inside, port = ["ip", "-n", name], end.replace("h", "p")
            steps += [
                ["ip", "link", "add", end, "netns", name, "type", "veth", "peer", "name", port, "netns", self.switch],
                [*within, "link", "set", port, "master", "bridge", "up"],
                [*inside, "addr", "add", f"{address}/24", "dev", end],
                [*inside, "link", "set", end, "up"],
                [*inside, "link", "set", "lo", "up"],
            ]
        for step in steps:
            done = quietly(*step)
            if done.returncode != 0:
                return f"`{' '.join(step)}` does not work here: {done.stderr.strip()}"
        return ""

    def limit(self, rate: str, packet: int = 8192) -> str:
        """Limit what each host sends to a rate such as 100mbit; return why it cannot be done, if so.

        Packets of up to this many bytes travel. Large ones spare the processor, as a network card that cuts them does;
        a burst, which is free, is little more than one.
        """
        for name, end in zip(self.names, self.ends, strict=True):
            quietly("ip", "-n", name, "link", "set", end, "gso_max_size", str(packet), "gso_ipv4_max_size", str(packet))
            shaped = ["tbf", "rate", rate, "burst", str(packet + 4096), "latency", "200ms"]
            done = quietly("tc", "-n", name, "qdisc", "add", "dev", end, "root", *shaped)
            if done.returncode != 0:
                return f"`tc` cannot limit rates here: {done.stderr.strip()}"
        return ""

    def slow_down(self) -> None:
        """Make the link as slow as an office's, where the kernel can: 100 Mbit/s, 5 ms each way."""
        for name, end in zip(self.names, self.ends, strict=True):
            quietly("tc", "-n", name, "qdisc", "add", "dev", end, "root", "netem", "delay", "5ms", "rate", "100mbit")

    def cut(self) -> None:
        quietly("ip", "-n", self.names[1], "link", "set", self.ends[1], "down")

    def torchrun(
        self, number: int, folder: Path, *arguments: str, python: list[str] | None = None
    ) -> "subprocess.Popen[str]":
        """Start torchrun with one rank on one of the hosts, both forked from a server unless `python` starts them."""
        python = python or forked_python()
        torchrun = ["-m", "torch.distributed.run", "--nnodes", str(len(self.names)), "--nproc-per-node", "1"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-id", self.names[0], "--no-python"]
        torchrun += ["--rdzv-endpoint", f"{self.addresses[0]}:29500", "--rdzv-conf", f"is_host={int(number == 0)}"]
        torchrun += ["--local-addr", self.addresses[number]]  # the hosts' names are not known to each other
        return self.start(number, folder, *python, *torchrun, *python, *arguments)

    def inside(self, number: int) -> list[str]:
        """Return what goes before a command to run it on one of the hosts, with a name of its own."""
        command = f'hostname host{number} && exec "$@"'
        return ["ip", "netns", "exec", self.names[number], "unshare", "--uts", "sh", "-c", command, "sh"]

    def start(self, number: int, folder: Path, *command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self.inside(number), *command],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def remove(self) -> None:
        for name in (*self.names, self.switch):
            for pid in quietly("ip", "netns", "pids", name).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            quietly("ip", "netns", "del", name)
