"""Which launcher started this process, its rank and the number of ranks, and whether a person sees its output."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

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
                f"inconsistent environment of {self.launcher}: rank {self.rank} of {self.size}, on its host "
                f"{self.local_rank} of {self.local_size}; start the program again, or without the launcher's "
                "variables, such as RANK and WORLD_SIZE"
            )

    @property
    def traits(self) -> "LauncherTraits":
        """The properties of its launcher."""
        return next((launcher for launcher in LAUNCHERS if launcher.name == self.launcher), LAUNCHERS[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherTraits:
    """The properties of one launcher, and the variables in which it says which rank this is."""

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


def is_watched() -> bool:
    """Return whether a person sees this process's output: a terminal or a notebook, and under a launcher rank 0."""
    if not (sys.stderr and sys.stderr.isatty()) and not ("IPython" in sys.modules and in_notebook()):
        return False
    world = detect_world()
    return world is None or world.rank == 0


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def _number(variables: Variables, name: str, otherwise: str = "") -> int:
    text = variables.get(name, otherwise)
    if not text.strip().isdecimal():
        raise MachineError(f"the environment says {name}={text!r}; a launcher sets it to a whole number")
    return int(text)


def _tasks_of_node(text: str, node: int) -> int:
    """Read Slurm's short form of tasks per node, "4(x2),3": 4, 4 and 3."""
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts[node] if node < len(counts) else 1
