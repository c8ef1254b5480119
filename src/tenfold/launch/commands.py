"""The commands that start one program on several machines: torchrun, mpirun, and a script for Slurm."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tenfold.errors import MachineError
from tenfold.launch.hosts_file import Host

PORT = 29500
Command = list[str]


def program(file: Path, arguments: Sequence[str] = ()) -> Command:
    """Return what every process runs: your own script, or `tenfold train` for an experiment file."""
    own = [str(file)] if file.suffix == ".py" else ["-m", "tenfold", "train", str(file)]
    return [*own, *arguments]


def torchrun(
    hosts: Sequence[Host], what: Sequence[str], *, port: int = PORT, name: str = "tenfold", python: str | None = None
) -> list[tuple[Host, Command]]:
    """Return each host's command; all connect to the first host, at `port`.

    The rendezvous host and the address of each host are stated explicitly, as many machines resolve their own name to
    127.0.1.1. `python` names an interpreter where torchrun is not on the path.
    """
    starter = _torchrun(python)
    if len(hosts) == 1:
        only = hosts[0]
        return [(only, [*starter, "--standalone", "--nproc-per-node", str(only.slots), *what])]
    meeting = [
        *("--nnodes", str(len(hosts))),
        *("--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"{hosts[0].address}:{port}"),
        *("--rdzv-id", name),
    ]
    return [
        (
            host,
            [
                *starter,
                *meeting,
                *("--rdzv-conf", f"is_host={int(host is hosts[0])}"),
                *("--local-addr", host.address.strip("[]")),
                *("--nproc-per-node", str(host.slots)),
                *what,
            ],
        )
        for host in hosts
    ]


def mpirun(hosts: Sequence[Host], what: Sequence[str], *, python: str | None = None) -> Command:
    """Return the command, for Open MPI, that starts all processes from the machine it is run on."""
    places = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    workers = sum(host.slots for host in hosts)
    return ["mpirun", "-n", str(workers), "--host", places, python or "python", *what]


def find_mpirun() -> str | None:
    """Return the path of mpirun: the one that is installed beside Python, else the first on the PATH."""
    return shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")


def slurm(
    what: Sequence[str],
    *,
    name: str,
    nodes: int,
    per_node: int,
    threads: int = 1,
    gpus: bool = False,
    port: int = PORT,
    python: str | None = None,
) -> str:
    """Return an sbatch script: one torchrun per node, which starts `per_node` processes of `threads` cores each."""
    for label, count in (("nodes", nodes), ("processes per node", per_node), ("threads", threads)):
        if count < 1:
            raise MachineError(f"a Slurm job with {label} = {count} runs nothing; it takes at least 1")
    for word in (name, *what, python or ""):
        if unprintable := [character for character in word if not character.isprintable()]:
            raise MachineError(
                f"{word!r} contains {unprintable[0]!r}, which cannot be written to a Slurm script; rename the file"
            )
    asked = [
        f"--job-name={shlex.quote(name)}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={per_node * threads}",
        *([f"--gpus-per-node={per_node}"] if gpus else []),
        "--output=%x-%j.out",
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in asked),
        "",
        "# One task per node: torchrun, which starts the node's processes itself.",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ' + shlex.join(_torchrun(python)) + " \\",
        f'    --nnodes "$SLURM_NNODES" --nproc-per-node {per_node} \\',
        f'    --rdzv-backend c10d --rdzv-endpoint "$first:{port}" --rdzv-id "$SLURM_JOB_ID" \\',
        f"    {shlex.join(what)}",
    ]
    return "\n".join(lines) + "\n"


def share_out(workers: int, nodes: int) -> int:
    """Return how many of the experiment's workers run on each node; with one worker, their number is not set."""
    if workers > 1 and workers % nodes:
        raise MachineError(
            f"{workers} workers do not divide evenly among {nodes} nodes; change the nodes or the workers"
        )
    return max(1, workers // nodes)


def _torchrun(python: str | None) -> Command:
    return ["torchrun"] if python is None else [python, "-m", "torch.distributed.run"]
