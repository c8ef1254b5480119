"""What a cluster is made of: groups of nodes, lines between them, and how unevenly they step."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from tenfold.cluster.hardware import Noise
from tenfold.cluster.links import LINKS, LinkField
from tenfold.experiment import Section
from tenfold.experiment.values import AsTuple, Count, Positive, Text

Sigma = Annotated[float, Field(ge=0, le=2)]


class Stragglers(Section):
    """How unevenly workers step, on top of what a profile has measured."""

    noise: Noise = "log-normal"
    """How step times are distributed: log-normal, or shifted-exponential (a lower bound and a long tail)."""
    persistent: Sigma = 0.0
    """Spread between workers for the whole run: sigma of the log-normal, standard deviation of the exponential."""
    transient: Sigma = 0.0
    """Spread between the steps of one worker, likewise."""

    @model_validator(mode="after")
    def _positive_times(self) -> Self:
        if self.noise == "shifted-exponential" and max(self.persistent, self.transient) > 1:
            raise ValueError("shifted-exponential spreads are at most 1: no step takes less than 0 seconds")
        return self


class NodeGroup(Section):
    """Identical nodes."""

    name: Text = "nodes"
    """Its name in messages and in [[between]]."""
    count: Count = 1
    """Nodes in the group."""
    workers: Count = 1
    """Workers on each node."""
    cores: Count = 1
    """Cores of each node, which its workers share."""
    threads: Count = 1
    """Threads of each worker; more than there are cores slow all workers of the node down."""
    speed: Positive = 1.0
    """Speed of a worker relative to the profile: 2 takes half the time for a step."""
    step_seconds: Positive | None = None
    """Seconds of a step, for hardware described by hand. Default: from the profile."""
    profile: Text | None = None
    """The file of its profile. Default: this machine's profile."""
    link: LinkField = LINKS["10gbe"]
    """The link between nodes."""
    inside: LinkField = LINKS["shared-memory"]
    """The link between workers of one node."""
    shared_port: bool = True
    """Whether the workers of a node share its port to other nodes."""

    @property
    def slowdown(self) -> float:
        """How much longer a step takes because threads outnumber cores."""
        return max(1.0, self.workers * self.threads / self.cores)


class GroupLink(Section):
    """The link between two groups."""

    groups: Annotated[tuple[Text, Text], AsTuple]
    """The names of two groups."""
    link: LinkField
    shared: bool = False
    """Whether all messages between the two groups share one line."""
