"""The hardware that an experiment describes: a virtual cluster, or this machine."""

from enum import Enum
from typing import Any, Final

from tenfold.cluster.cluster import Cluster
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.values import format_value

DEFAULT_LINK = "10gbe"
PRESETS: dict[str, dict[str, Any]] = {
    "dsmp-c1": {
        "name": "DSMP, configuration C1: desktop computers with four cores (i7-4790S) on a gigabit network",
        "groups": [{"name": "c1", "count": 64, "cores": 4, "link": "1gbe"}],
    },
    "dsmp-c2": {
        "name": "DSMP, configuration C2: one server with 64 logical cores (Xeon Gold 5218)",
        "groups": [{"name": "c2", "workers": 64, "cores": 64, "inside": "shared-memory"}],
    },
}
"""The clusters that the papers describe, by name; their steps take as long as on this machine."""


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
