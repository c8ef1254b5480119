"""Section [machine]: where it runs."""

from typing import Annotated, Literal

from tenfold.experiment.section import Section
from tenfold.experiment.values import AsTable, Count, Options, Text


class Machine(Section):
    """Where it runs."""

    device: Text = "cpu"
    """cpu, cuda, cuda:1, mps, or auto (the fastest there is)."""
    threads: Count | None = None
    """Threads of each worker. Unset: the cores this process may use, shared among the workers."""
    pin: Text = "none"
    """Cores for the workers: none, compact, scatter, or a list such as "0,1,2,4"."""
    oversubscribe: bool = False
    """Allow more threads than there are cores."""
    engine: Literal["auto", "serial", "processes", "launched", "virtual"] = "auto"
    """What hosts the replicas. auto: serial for one worker, processes for more, launched under torchrun or mpirun."""
    transport: Literal["auto", "shared-memory", "torch", "mpi"] = "auto"
    """How tensors move between workers. auto: in shared memory; under a launcher also by torch.distributed or MPI."""
    on_failure: Literal["end", "continue"] = "end"
    """When a worker is lost: end the run, to be resumed, or go on with the others from the last whole epoch."""
    fused: Literal["auto", "vmap", "loop"] = "auto"
    """How replicas on one device step: in the same operations, one by one, or whichever a short probe finds faster."""
    cluster: Annotated[Text | Options | None, AsTable] = None
    """Hardware of a virtual cluster: a file, the same as a table, or "here" for the processes of this machine.

    Unset: nodes of one worker each, any two of them joined by `link`."""
    link: Annotated[Text | Options | None, AsTable] = None
    """What joins the nodes of a virtual cluster: 1gbe, 10gbe, wifi, ..., or its latency and bandwidth. Unset: 10gbe."""
