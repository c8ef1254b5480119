"""Which launcher started this process, its rank and the number of ranks, read from environment variables."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tenfold.errors import MachineError

Variables = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LauncherTraits:
    """The properties of one launcher, after its variables have been read."""

    meets_by_mpi: bool = True
    """Whether its ranks can meet by MPI."""
    meets_at_address: bool = False
    """Whether its ranks can meet at $MASTER_ADDR, where that is set."""
    restarts_remaining: bool = False
    """Whether it starts the remaining ranks again when one is lost."""
    requeues: bool = False
    """Whether a restart has another process of the launcher, so that the run is older than that."""


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
    def traits(self) -> LauncherTraits:
        """The properties of its launcher."""
        return LAUNCHER_TRAITS.get(self.launcher, LauncherTraits())


def detect_world(variables: Variables | None = None) -> World | None:
    """Return the ranks that the environment describes, or None without a launcher.

    torchrun comes first, as it may itself have been started by one of the others.
    """
    variables = os.environ if variables is None else variables
    launchers = (launcher for variable, launcher in LAUNCHERS.items() if variable in variables)
    return next((world for launcher in launchers if (world := launcher(variables)) is not None), None)


def torchrun(variables: Variables) -> World | None:
    """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them."""
    if "WORLD_SIZE" not in variables:
        return None
    launch = variables.get("TORCHELASTIC_RUN_ID", "none")
    return World(
        launcher="torchrun",
        rank=_number(variables, "RANK"),
        size=_number(variables, "WORLD_SIZE"),
        local_rank=_number(variables, "LOCAL_RANK", otherwise=0),
        local_size=_number(variables, "LOCAL_WORLD_SIZE", otherwise=1),
        launch="" if launch == "none" else launch,  # what torchrun says when it was given no --rdzv-id
        restarts=_number(variables, "TORCHELASTIC_RESTART_COUNT", otherwise=0),
    )


def open_mpi(variables: Variables) -> World | None:
    """Read OMPI_COMM_WORLD_*, as Open MPI's mpirun sets them."""
    return World(
        launcher="open-mpi",
        rank=_number(variables, "OMPI_COMM_WORLD_RANK"),
        size=_number(variables, "OMPI_COMM_WORLD_SIZE"),
        local_rank=_number(variables, "OMPI_COMM_WORLD_LOCAL_RANK", otherwise=0),
        local_size=_number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", otherwise=1),
    )


def mpich(variables: Variables) -> World | None:
    """Read PMI_* and MPI_LOCAL*, as Hydra sets them: the mpiexec of MPICH and Intel MPI."""
    if "PMI_SIZE" not in variables:
        return None
    return World(
        launcher="mpich",
        rank=_number(variables, "PMI_RANK"),
        size=_number(variables, "PMI_SIZE"),
        local_rank=_number(variables, "MPI_LOCALRANKID", otherwise=0),
        local_size=_number(variables, "MPI_LOCALNRANKS", otherwise=1),
    )


def slurm(variables: Variables) -> World | None:
    """Read SLURM_*, as srun sets them; the batch script itself, outside of srun, is not a rank."""
    if "SLURM_STEP_NUM_TASKS" not in variables:
        return None
    node = _number(variables, "SLURM_NODEID", otherwise=0)
    return World(
        launcher="slurm",
        rank=_number(variables, "SLURM_PROCID"),
        size=_number(variables, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(variables, "SLURM_LOCALID", otherwise=0),
        local_size=_tasks_of_node(variables.get("SLURM_STEP_TASKS_PER_NODE", "1"), node),
        launch=variables.get("SLURM_JOB_ID", ""),
        restarts=_number(variables, "SLURM_RESTART_COUNT", otherwise=0),
    )


LAUNCHERS: dict[str, Callable[[Variables], World | None]] = {
    "RANK": torchrun,
    "OMPI_COMM_WORLD_RANK": open_mpi,
    "SLURM_PROCID": slurm,
    "PMI_RANK": mpich,
}
"""By the variable that has the rank, in the order in which they are checked: srun may set Hydra's beside its own."""
LAUNCHER_TRAITS = {
    "torchrun": LauncherTraits(meets_by_mpi=False, meets_at_address=True, restarts_remaining=True),
    "slurm": LauncherTraits(meets_at_address=True, requeues=True),
}
"""By the name of the launcher; one that is not listed is an MPI's."""


def _number(variables: Variables, name: str, otherwise: int | None = None) -> int:
    text = variables.get(name, "" if otherwise is None else str(otherwise))
    if not text.strip().isdecimal():
        raise MachineError(f"the environment says {name}={text!r}; a launcher sets it to a whole number")
    return int(text)


def _tasks_of_node(text: str, node: int) -> int:
    """Read Slurm's short form of tasks per node, "4(x2),3": 4, 4 and 3."""
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts[node] if node < len(counts) else 1
