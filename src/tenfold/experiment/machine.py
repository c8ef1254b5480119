"""Section [machine]: where it runs."""

from typing import Annotated, Literal

from tenfold.common.catalog import NETWORKS
from tenfold.experiment.section import Section
from tenfold.experiment.values import AsTable, Count, OneOf, Options, Positive, Text


class Machine(Section):
    """The hardware that runs the experiment."""

    device: Text = "cpu"
    """cpu, cuda, cuda:1, mps, or auto (the fastest available)."""
    threads: Count | None = None
    """Threads per worker, also on the nodes of a virtual cluster that does not set them. Default: the cores that this
    process may use, divided among the workers; on a virtual cluster 1."""
    pin: Text = "none"
    """Cores for the workers: none, compact, scatter, or a list such as "0,1,2,4"."""
    oversubscribe: bool = False
    """Allow more threads than there are cores."""
    engine: Literal["auto", "serial", "processes", "fused", "launched", "virtual"] = "auto"
    """What hosts the replicas. auto: serial for one worker; for more, processes on cpu and fused (all replicas step
    together on one device) on a GPU; launched under torchrun or mpirun."""
    transport: Annotated[str, OneOf(NETWORKS, "auto", "shared-memory")] = "auto"
    """How tensors move between workers. auto: in shared memory; under a launcher also by torch.distributed or MPI."""
    on_failure: Literal["end", "continue"] = "end"
    """When a worker is lost: end the run, which can be resumed, or continue with the others. A worker process is then
    replaced by another one; under torchrun, the ranks that are restarted continue from the last completed epoch."""
    replacements: Count = 3
    """How often a lost worker process is replaced before it has completed an epoch; then the run ends."""
    stall_after: Positive | None = None
    """Seconds without progress (a step, an evaluated batch) after which a worker process is lost; also, but at least
    30, the seconds that the ranks of several hosts wait for each other at the start.

    Default: 20 times the longest seen so far, at least 60; more at startup and in the first steps; 120 for ranks."""
    fused: Literal["auto", "vmap", "loop"] = "auto"
    """How replicas on one device step: in the same operations, one by one, or whichever a short probe finds faster."""
    cluster: Annotated[Text | Options | None, AsTable] = None
    """Hardware of a virtual cluster: a TOML file, a table, dsmp-c1, dsmp-c2, or "here" for this machine.

    Default: nodes of one worker each, any two of them connected by `link`."""
    link: Annotated[Text | Options | None, AsTable] = None
    """The links between the nodes of a virtual cluster: 1gbe, 10gbe, wifi, ..., or a table of latency and bandwidth.

    Default: 10gbe."""
