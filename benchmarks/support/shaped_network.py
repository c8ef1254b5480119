"""Hosts that are network namespaces of this one, on a slow network.

The network is made by tc (a bridge whose ports have netem's delay and rate) where the kernel has netem. Elsewhere each
host gets a TUN device, and a thread here carries its packets: each port sends and receives at the given rate, and what
has left one arrives at the other after the delay.
"""

import ctypes
import fcntl
import heapq
import itertools
import os
import select
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
HEADERS = 52
"""Bytes of a packet that are IPv4's and TCP's, with its time stamps."""


class Hosts:
    """Namespaces with the addresses 10.214.0.1, .2, ...; to be used in a `with` block."""

    def __init__(self, count: int, *, bits_per_second: float, delay: float, relayed: bool | None = None) -> None:
        self.names = [f"tenfold-bench-{os.getpid()}-{number}" for number in range(count)]
        self.addresses = [f"10.214.0.{number + 1}" for number in range(count)]
        self.switch = f"tenfold-bench-{os.getpid()}-switch"
        self.bits_per_second, self.delay = bits_per_second, delay
        self.relayed = not has_netem() if relayed is None else relayed
        self.mtu = 9000 if self.relayed else 1500
        self._relay: Relay | None = None

    @property
    def bandwidth(self) -> float:
        """Bytes of content a second: what the headers of full packets leave."""
        framed = 0 if self.relayed else 14  # tc counts Ethernet's header
        return self.bits_per_second / 8 * (self.mtu - HEADERS) / (self.mtu + framed)

    @property
    def about(self) -> str:
        """How the network is made."""
        how = "a relay of TUN devices, for this kernel has no netem" if self.relayed else "tc netem on a bridge"
        return f"{len(self.names)} hosts, {self.bits_per_second / 1e6:g} Mbit/s, {self.delay * 1e3:g} ms; {how}"

    def __enter__(self) -> "Hosts":
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            self._join_by_relay() if self.relayed else self._join_by_bridge()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, self.switch):
            done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for pid in done.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        if self._relay is not None:
            self._relay.close()

    def start(self, number: int, command: list[str], **options: object) -> "subprocess.Popen[str]":
        """Start a command on a host, which has a name of its own."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname host{number} && exec "$@"', "sh"]
        return subprocess.Popen(["ip", "netns", "exec", self.names[number], *named, *command], text=True, **options)  # type: ignore[call-overload,no-any-return]

    def _join_by_bridge(self) -> None:
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        rate, delay = f"{self.bits_per_second:.0f}bit", f"{self.delay * 1e6:.0f}us"
        for number, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            port = f"port{number}"
            ends = ["eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", self.switch]
            run("ip", "link", "add", *ends)
            run("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            netem = ["root", "netem", "limit", "10000", "rate", rate]
            run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *netem, "delay", delay)
            run("tc", "-n", self.switch, "qdisc", "add", "dev", port, *netem)

    def _join_by_relay(self) -> None:
        ends = [tun_in(name) for name in self.names]
        for name, address in zip(self.names, self.addresses, strict=True):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "tun0")
            run("ip", "-n", name, "link", "set", "tun0", "mtu", str(self.mtu), "up")
        self._relay = Relay(ends, self.bits_per_second / 8, self.delay)


class Relay:
    """A thread that carries packets between the TUN devices of hosts."""

    def __init__(self, ends: list[int], bytes_per_second: float, delay: float) -> None:
        self.ends, self.per_byte, self.delay = ends, 1 / bytes_per_second, delay
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.write(self._waker, b"x")
        self._thread.join()
        for end in (*self.ends, self._wake, self._waker):
            os.close(end)

    def _carry(self) -> None:
        traveling: list[tuple[float, int, int, bytes]] = []
        number = itertools.count()
        sent, received = [0.0] * len(self.ends), [0.0] * len(self.ends)
        while True:
            wait = max(0.0, traveling[0][0] - monotonic()) if traveling else None
            ready, _, _ = select.select([*self.ends, self._wake], [], [], wait)
            if self._wake in ready:
                return
            now = monotonic()
            for end in ready:
                packet, here = os.read(end, 65536), self.ends.index(end)
                there = packet[19] - 1  # the last byte of the address it is for
                if packet[0] >> 4 != 4 or not 0 <= there < len(self.ends):
                    continue
                seconds = len(packet) * self.per_byte
                leaves = max(now, sent[here])
                sent[here] = leaves + seconds
                received[there] = max(leaves + self.delay, received[there]) + seconds
                heapq.heappush(traveling, (received[there], next(number), there, packet))
            while traveling and traveling[0][0] <= monotonic():
                _, _, there, packet = heapq.heappop(traveling)
                with suppress(OSError):
                    os.write(self.ends[there], packet)


def come_first() -> bool:
    """Let this process and those it starts go before all others, so that these delay no packet; False if it may not."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except OSError:
        return False
    return True


def obstacle() -> str:
    """Return why hosts cannot be made here, or ""."""
    missing = next((program for program in ("ip", "tc", "unshare") if shutil.which(program) is None), None)
    if missing:
        return f"there is no `{missing}` on this machine"
    if os.geteuid() != 0:
        return "network namespaces need root"
    return "" if has_netem() or Path("/dev/net/tun").exists() else "this kernel has neither netem nor TUN devices"


def has_netem() -> bool:
    name = f"tenfold-bench-{os.getpid()}-try"
    run("ip", "netns", "add", name)
    tried = ["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    try:
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    finally:
        run("ip", "netns", "del", name)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` does not work here: {done.stderr.strip()}")


def tun_in(namespace: str) -> int:
    """Return a new TUN device of a namespace; this process stays in its own."""

    def make() -> int:
        end = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
        return end

    return _within(Path("/var/run/netns", namespace), make)


def _within(namespace: Path, make: Callable[[], int]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    own, other = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(other, 0) != 0:
            raise SystemExit(f"{namespace} cannot be entered: {os.strerror(ctypes.get_errno())}")
        try:
            return make()
        finally:
            libc.setns(own, 0)
    finally:
        os.close(own)
        os.close(other)
