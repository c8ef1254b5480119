"""Launchers are recognised by the variables that they set, and by nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from looped import looped

from tenfold.errors import MachineError
from tenfold.launchers import World, detect_world

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "night",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "11",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "SLURM_JOB_ID": "77",
}


@looped(
    ("variables", "world"),
    [
        ({}, None),
        ({"HOME": "here", "RANK": "1"}, None),
        (TORCHRUN, World(5, 8, 1, 4, "torchrun", "night", 2)),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, World(5, 8, 1, 4, "torchrun", "", 2)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, World(0, 1, 0, 1, "torchrun")),
        (OPEN_MPI, World(3, 4, 1, 2, "open-mpi")),
        (MPICH, World(3, 4, 1, 2, "mpich")),
        (SLURM, World(9, 11, 1, 3, "slurm", "77")),
        (SLURM | MPICH, World(9, 11, 1, 3, "slurm", "77")),
        ({name: SLURM[name] for name in SLURM if "STEP" not in name}, None),
    ],
)
def test_a_world_is_read_from_the_environment(variables: dict[str, str], world: World | None) -> None:
    assert detect_world(variables) == world


@pytest.mark.parametrize("other", [OPEN_MPI, MPICH, SLURM], ids=["open-mpi", "mpich", "slurm"])
def test_torchrun_may_itself_be_launched(other: dict[str, str]) -> None:
    world = detect_world(other | TORCHRUN)
    assert world is not None
    assert world.launcher == "torchrun"


@looped(
    ("change", "sentence"),
    [
        ({"RANK": "many"}, "environment variable RANK='many' is invalid; a launcher sets it to a whole number"),
        ({"RANK": "8"}, "rank 8 of 8"),
        ({"LOCAL_RANK": "4"}, "local rank 4 of 4"),
        ({"LOCAL_WORLD_SIZE": "9"}, "inconsistent"),
    ],
)
def test_nonsense_is_a_sentence(change: dict[str, str], sentence: str) -> None:
    with pytest.raises(MachineError, match=sentence):
        detect_world(TORCHRUN | change)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.data())
def test_slurms_short_form_counts_the_tasks_of_every_node(tasks: list[int], data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(tasks) - 1))
    variables = SLURM | {
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_TASKS": str(sum(tasks)),
        "SLURM_NODEID": str(node),
        "SLURM_STEP_TASKS_PER_NODE": ",".join(f"{count}(x1)" if count % 2 else str(count) for count in tasks),
    }
    world = detect_world(variables)
    assert world is not None
    assert world.local_size == tasks[node]
