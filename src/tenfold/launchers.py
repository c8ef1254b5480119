"""Launchers: detect the one that started this process, and start a program on several machines."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic

from tenfold.common.files import read_regular
from tenfold.errors import MachineError

Variables = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class World:
    """A process's place among those that a launcher started together."""

    rank: int
    size: int
    local_rank: int
    """Its number among the ranks of its host."""
    local_size: int
    """How many ranks its host has."""
    launcher: str
    """torchrun, open-mpi, mpich or slurm."""
    launch: str = ""
    """Identifies the launch, the same on all ranks and after a restart; "" where the launcher gives no name."""
    restarts: int = 0
    """How often the launcher has restarted the ranks."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size or not 0 <= self.local_rank < self.local_size <= self.size:
            raise MachineError(
                f"inconsistent environment of {self.launcher}: rank {self.rank} of {self.size}, local rank "
                f"{self.local_rank} of {self.local_size}; start the program again, or unset the launcher's "
                "variables, such as RANK and WORLD_SIZE"
            )

    @property
    def traits(self) -> "LauncherTraits":
        """The properties of its launcher."""
        return next((launcher for launcher in LAUNCHERS if launcher.name == self.launcher), LAUNCHERS[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherTraits:
    """The properties of one launcher, and its environment variables for the rank."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    node: str = ""
    """The variable with the number of the host, where `local_size` lists those of all hosts."""
    launch: str = ""
    restarts: str = ""
    meets_by_mpi: bool = True
    """Whether its ranks can meet by MPI."""
    meets_at_address: bool = False
    """Whether its ranks can meet at $MASTER_ADDR, where that is set."""
    restarts_remaining: bool = False
    """Whether it starts the remaining ranks again when one is lost."""
    requeues: bool = False
    """Whether a restart has another process of the launcher, so that the run is older than that."""

    def read(self, variables: Variables) -> World | None:
        """Return the rank; None where only a part of the variables is there, as in the batch script of Slurm."""
        if self.rank not in variables or self.size not in variables:
            return None
        launch = variables.get(self.launch, "none")
        return World(
            launcher=self.name,
            rank=_number(variables, self.rank),
            size=_number(variables, self.size),
            local_rank=_number(variables, self.local_rank, "0"),
            local_size=_tasks_of_node(variables.get(self.local_size, "1"), _number(variables, self.node, "0"))
            if self.node
            else _number(variables, self.local_size, "1"),
            launch="" if launch == "none" else launch,  # what torchrun says when it was given no --rdzv-id
            restarts=_number(variables, self.restarts, "0"),
        )


LAUNCHERS = (
    LauncherTraits(
        name="torchrun",
        rank="RANK",
        size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_size="LOCAL_WORLD_SIZE",
        launch="TORCHELASTIC_RUN_ID",
        restarts="TORCHELASTIC_RESTART_COUNT",
        meets_by_mpi=False,
        meets_at_address=True,
        restarts_remaining=True,
    ),
    LauncherTraits(
        name="open-mpi",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    LauncherTraits(
        name="slurm",
        rank="SLURM_PROCID",
        size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        local_size="SLURM_STEP_TASKS_PER_NODE",
        node="SLURM_NODEID",
        launch="SLURM_JOB_ID",
        restarts="SLURM_RESTART_COUNT",
        meets_at_address=True,
        requeues=True,
    ),
    LauncherTraits(
        name="mpich",  # Hydra: also of Intel MPI
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
    ),
)
"""In the order in which they are tried: torchrun may have been started by another, srun may set Hydra's as well."""


def detect_world(variables: Variables | None = None) -> World | None:
    """Return the ranks that the environment describes, or None without a launcher."""
    variables = os.environ if variables is None else variables
    return next((world for launcher in LAUNCHERS if (world := launcher.read(variables)) is not None), None)


def _number(variables: Variables, name: str, otherwise: str = "") -> int:
    text = variables.get(name, otherwise)
    if not text.strip().isdecimal():
        raise MachineError(f"environment variable {name}={text!r} is invalid; a launcher sets it to a whole number")
    return int(text)


def _tasks_of_node(text: str, node: int) -> int:
    """Read Slurm's short form of tasks per node, "4(x2),3": 4, 4 and 3."""
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts[node] if node < len(counts) else 1


# Starting one program on several machines: hosts, commands, and how they are run.

NAME = re.compile(r"(?:[\w.-]+@)?(?:[\w.-]+|\[[0-9A-Fa-f:.%\w]+\])")
FORMS = "write one name per line, with its number of processes: `node1 slots=4` or `node1:4`"
IGNORED = ("max_slots", "max-slots")  # a limit on other programs that use the file


@dataclass(frozen=True)
class Host:
    """A machine, as ssh reaches it, and how many processes run there."""

    name: str
    slots: int = 1

    @property
    def address(self) -> str:
        """Its name without the user, as the other machines know it."""
        return self.name.rpartition("@")[2]


def read_hosts(path: Path, slots: int = 1) -> tuple[Host, ...]:
    """Read a hosts file; `slots` is the default for lines without a number."""
    try:
        text = read_regular(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise MachineError(f"there is no hosts file {path}; {FORMS}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise MachineError(f"the hosts file {path} cannot be read: {reason}") from None
    return parse_hosts(text, str(path), slots)


def parse_hosts(text: str, where: str = "hosts", slots: int = 1) -> tuple[Host, ...]:
    """Return the hosts in the order of the text; the slots of a repeated name add up.

    A line is `name`, `name slots=4` (Open MPI) or `name:4` (MPICH); what follows # is a comment.
    """
    ranks_by_host: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            name, count = _read_line(words, f"{where}, line {number}", slots)
            ranks_by_host[name] += count
    if not ranks_by_host:
        raise MachineError(f"{where} names no host; {FORMS}")
    return tuple(Host(name, count) for name, count in ranks_by_host.items())


def _read_line(words: list[str], where: str, slots: int) -> tuple[str, int]:
    name, *settings = words
    outside_brackets = name.rpartition("]")[2]
    if outside_brackets.count(":") == 1:
        name, _, count = name.rpartition(":")
        settings.insert(0, f"slots={count}")
    if not NAME.fullmatch(name) or name.startswith("-"):
        raise MachineError(f"{where}: '{name}' is not a host name; {FORMS}")
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in ("slots", *IGNORED):
            raise MachineError(f"{where}: unknown setting '{setting}'; {FORMS}")
        if not (value.isdecimal() and int(value) >= 1):
            raise MachineError(f"{where}: {key} is '{value}'; it should be a whole number of at least 1")
        if key == "slots":
            slots = int(value)
    return name, slots


SSH = ("ssh", "-tt", "-o", "BatchMode=yes")
"""With a terminal (-tt) a remote program is hung up on when ssh ends; BatchMode never asks for a password."""
WAIT_SECONDS = 15.0
"""Seconds that a command has to end after SIGTERM; torchrun gives its workers ten of them."""

Say = Callable[[str, str], None]


def run_everywhere(commands: Sequence[tuple[Host, Sequence[str]]], folder: Path, say: Say) -> int:
    """Run each host's command in the folder of the same name there; return 0, or the code of the first that failed.

    `say(host, line)` gets every line of output. When one fails, or this process is interrupted, all are ended.
    """
    lines: SimpleQueue[tuple[int, str | None]] = SimpleQueue()
    started: list[subprocess.Popen[str]] = []
    failed = 0
    try:
        for place, (host, command) in enumerate(commands):
            started.append(_start(host, command, folder))
            Thread(target=_listen, args=(started[-1], place, lines), daemon=True).start()
        running = len(started)
        while running:
            place, line = lines.get()
            if line is not None:
                say(commands[place][0].name, line)
                continue
            running -= 1
            code = started[place].wait()
            if code and not failed:
                failed = code if code > 0 else 128 - code
                rest = "; ending the others" if running else ""
                say(commands[place][0].name, f"ended with exit code {failed}{rest}")
                _ask_to_end(started)
    finally:
        _end(started)
    return failed


def is_here(host: Host) -> bool:
    """Return whether a host is this machine, judging by its name."""
    return host.name in ("localhost", "127.0.0.1", socket.gethostname())


def _start(host: Host, command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    line = f"cd {shlex.quote(str(folder))} && exec {shlex.join(command)}"
    whole = ["sh", "-c", line] if is_here(host) else [*SSH, host.name, line]
    try:
        return subprocess.Popen(
            whole,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C comes here first, and all are ended from here
        )
    except OSError as error:
        raise MachineError(f"{whole[0]} cannot be started: {error.strerror}; --run needs it on the PATH") from None


def _listen(process: subprocess.Popen[str], place: int, lines: "SimpleQueue[tuple[int, str | None]]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put((place, line.rstrip("\r\n")))
    lines.put((place, None))


def _ask_to_end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        _signal(process, signal.SIGTERM)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    _ask_to_end(processes)
    deadline = monotonic() + WAIT_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


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
            raise MachineError(f"a Slurm job needs at least 1 for {label}, not {count}")
    for word in (name, *what, python or ""):
        if unprintable := [character for character in word if not character.isprintable()]:
            raise MachineError(
                f"{word!r} contains {unprintable[0]!r}, which cannot be written to a Slurm script; rename the file"
            )
    requested = [
        f"--job-name={shlex.quote(name)}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={per_node * threads}",
        *([f"--gpus-per-node={per_node}"] if gpus else []),
        "--output=%x-%j.out",
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in requested),
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
