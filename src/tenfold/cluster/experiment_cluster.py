"""The hardware that an experiment describes: a virtual cluster, or this machine."""

from enum import Enum
from typing import Final

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.presets import PRESETS
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.values import format_value

DEFAULT_LINK = "10gbe"


class ThisMachine(Enum):
    """Stands for the worker processes of this machine, where a cluster could be given."""

    HERE = "here"


HERE: Final = ThisMachine.HERE
ClusterOrHere = Cluster | ThisMachine


def cluster_of(experiment: Experiment) -> ClusterOrHere:
    """Return the cluster that an experiment describes, or HERE: the worker processes of this machine.

    Raises ExperimentError when the cluster is described twice or has no room for the workers.
    """
    cluster = _described(experiment)
    if cluster is not HERE:
        cluster.placed(experiment.division.workers)
    return cluster


def _described(experiment: Experiment) -> ClusterOrHere:
    given, link = experiment.machine.cluster, experiment.machine.link
    if given is not None and link is not None:
        raise ExperimentError(
            f"machine.link = {format_value(link)} connects nodes that machine.cluster already describes; "
            "set only one of them"
        )
    if given == HERE.value:
        return HERE
    threads = experiment.machine.threads or 1
    if given is None:
        try:
            return Cluster.of(experiment.division.workers, link or DEFAULT_LINK, threads=threads, cores=threads)
        except ExperimentError as error:
            raise ExperimentError("\n".join(f"machine.{line}" for line in str(error).splitlines())) from None
    if isinstance(given, str) and given in PRESETS:
        preset = PRESETS[given]
        return Cluster(**preset | {"groups": [group | {"threads": threads} for group in preset["groups"]]})
    return Cluster.load(given) if isinstance(given, str) else Cluster(**given)
