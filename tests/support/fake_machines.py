"""Machines made of files: /sys and /proc trees for tests, and the same machines as values."""

from pathlib import Path

from hypothesis import strategies as st

from tenfold.machine.cores import Cpu, Topology, write_cpus


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def layout(packages: int, nodes: int, cores: int, smt: int, split: bool = True) -> tuple[Cpu, ...]:
    """`nodes` are per package, `cores` per node. Split: SMT siblings are numbered after all cores, as servers do."""
    total = packages * nodes * cores
    cpus = []
    for core in range(total):
        numbers = [core + thread * total if split else core * smt + thread for thread in range(smt)]
        node = core // cores
        cpus += [Cpu(number, node // nodes, node, tuple(numbers)) for number in numbers]
    return tuple(sorted(cpus, key=lambda cpu: cpu.number))


def build_sys(root: Path, cpus: tuple[Cpu, ...]) -> None:
    system = root / "sys/devices/system"
    for cpu in cpus:
        folder = system / f"cpu/cpu{cpu.number}/topology"
        write(folder / "physical_package_id", str(cpu.package))
        write(folder / "thread_siblings_list", write_cpus(cpu.siblings))
    for node in {cpu.node for cpu in cpus}:
        write(system / f"node/node{node}/cpulist", write_cpus(cpu.number for cpu in cpus if cpu.node == node))


def build_cgroup2(root: Path, path: str, limits: dict[str, dict[str, str]], shown: str = "/") -> None:
    """A v2 hierarchy; `limits` maps a folder below the mount to its files."""
    write(root / "proc/self/cgroup", f"0::{path}")
    write(root / "proc/self/mountinfo", f"30 23 0:26 {shown} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw")
    for folder, files in limits.items():
        for name, text in files.items():
            write(root / "sys/fs/cgroup" / folder / name, text)


def build_cgroup1(root: Path, path: str, limits: dict[str, dict[str, str]], shown: str = "/") -> None:
    write(root / "proc/self/cgroup", f"5:memory:{path}\n4:cpu,cpuacct:{path}\n1:name=systemd:/user.slice")
    mounts = [
        f"32 31 0:29 {shown} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct",
        f"33 31 0:30 {shown} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory",
        "34 31 0:31 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd",
        "20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
    ]
    write(root / "proc/self/mountinfo", "\n".join(mounts))
    for folder, files in limits.items():
        for name, text in files.items():
            controller = "memory" if name.startswith("memory") else "cpu,cpuacct"
            write(root / "sys/fs/cgroup" / controller / folder / name, text)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any regular machine of which this process may use any part."""
    counts = st.integers(1, 3)
    cpus = layout(draw(counts), draw(counts), draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.booleans()))
    kept = draw(st.sets(st.sampled_from(cpus), min_size=1))
    return Topology(tuple(cpu for cpu in cpus if cpu in kept))
