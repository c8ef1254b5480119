"""The clock's model of hardware: step times, links, round costs, and groups of nodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from tenfold.errors import ExperimentError
from tenfold.experiment import Section
from tenfold.experiment.values import AsTuple, Count, Positive, Text, format_value
from tenfold.mixing import Round
from tenfold.registry import Registry, suggest

FORMS = "give a name such as 10gbe, or {latency = 1e-3, bandwidth = 1e7}"


class Link(Section):
    """A line that carries n bytes in latency + n / bandwidth seconds, in both directions at once."""

    latency: Annotated[float, Field(ge=0)]
    """Seconds until the first byte arrives, software included."""
    bandwidth: Annotated[float, Field(gt=0)]
    """Bytes per second in each direction."""

    @property
    def per_byte(self) -> float:
        return 1 / self.bandwidth


LINKS: Registry[Link] = Registry(
    "link",
    {
        "shared-memory": Link(latency=5e-6, bandwidth=10e9),
        "loopback": Link(latency=25e-6, bandwidth=3e9),
        "1gbe": Link(latency=50e-6, bandwidth=117e6),
        "10gbe": Link(latency=30e-6, bandwidth=1.17e9),
        "25gbe": Link(latency=20e-6, bandwidth=2.9e9),
        "100gbe": Link(latency=10e-6, bandwidth=11.7e9),
        "infiniband": Link(latency=2e-6, bandwidth=24e9),
        "nvlink": Link(latency=5e-6, bandwidth=250e9),
        "wifi": Link(latency=3e-3, bandwidth=30e6),
        "lte": Link(latency=40e-3, bandwidth=2.5e6),
    },
)
"""Typical performance of links as seen by a program, which is below the nominal rate.

    shared-memory   processes of one machine: a few microseconds to meet, the speed of copying in memory
    loopback        TCP within one machine
    1gbe to 100gbe  TCP over Ethernet with one switch between; 94% of the nominal rate is left after headers
    infiniband      HDR, 200 Gbit/s, with RDMA
    nvlink          GPUs of one machine (A100 generation), the launch of a transfer included
    wifi            802.11ac or ax in one room: about 240 Mbit/s, milliseconds of latency
    lte             a mobile phone: about 20 Mbit/s, 40 ms
"""


def _read(given: Any) -> Any:
    if isinstance(given, str) and given not in LINKS:
        raise ValueError(f"unknown link '{given}'; {suggest(given, LINKS)}, or {{latency = 1e-3, bandwidth = 1e7}}")
    if not isinstance(given, str | Link | Mapping):
        raise ValueError(f"{format_value(given)} is not a link; {FORMS}")
    return LINKS[given] if isinstance(given, str) else given


def _written(given: Link) -> Any:
    named = next((name for name in LINKS if LINKS[name] == given), None)
    return named or {"latency": given.latency, "bandwidth": given.bandwidth}


LinkField = Annotated[Link, BeforeValidator(_read), PlainSerializer(_written)]
"""A link in a file: a preset's name, or a table with latency and bandwidth."""


# The clock's model of hardware: the time of a step, and the cost of a round.
#
# Links, described by hand, give a `RoundCost`, and so does a calibrated profile; the clock treats both alike.

Floats = NDArray[np.float64]
Noise = Literal["log-normal", "shifted-exponential"]


RoundCost = Callable[[Round, int], float | Floats]
"""Seconds that a round takes once its workers have met, given the bytes of one replica: for all, or for each worker."""

ExchangeCost = Callable[[int, int, int, int], float]
"""Seconds that worker i and its partner j (-1: the center) are busy, from (i, j, bytes from i to j, bytes back)."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one step of one worker: Y_it = mean x s_i x e_it, s_i for the worker and e_it for the step.

    Both factors have the mean 1; where they are log-normal, s = exp(sigma z - sigma^2 / 2), z standard normal.
    """

    mean: float
    """Seconds of a step with a full batch."""
    between_workers: float = 0.0
    """Spread of s_i: sigma of the log-normal; the standard deviation of the shifted exponential."""
    between_steps: float = 0.0
    """Spread of e_it, likewise."""
    noise: Noise = "log-normal"
    """The distribution of both factors; a shifted exponential has a lower bound and a long tail."""
    trace: Floats | None = field(default=None, compare=False, repr=False)
    """Measured step times [steps, workers] to draw from instead of both spreads.

    They give the shape, `mean` gives the level. Consecutive rows are drawn for all workers together, which
    preserves bursts and shared delays.
    """
    fixed: float = 0.0
    """The part of the mean, in seconds, that does not depend on the batch size."""

    def __post_init__(self) -> None:
        spreads = (self.between_workers, self.between_steps)
        if not (np.isfinite(self.mean) and self.mean > 0):
            raise ExperimentError(f"a step takes {self.mean} s; it must take more than 0")
        if min(spreads) < 0 or not np.isfinite(spreads).all():
            raise ExperimentError(f"step times spread by {spreads[0]} and {spreads[1]}; both must be 0 or more")
        if self.noise == "shifted-exponential" and max(spreads) > 1:
            raise ExperimentError(f"step times spread by {max(spreads)}; a shifted exponential allows at most 1")
        if not 0 <= self.fixed <= self.mean:
            raise ExperimentError(f"{self.fixed} s of a step are fixed; it must be 0 to its mean, {self.mean} s")
        if self.trace is not None and (self.trace.ndim != 2 or not self.trace.size or not (self.trace > 0).all()):
            raise ExperimentError("a trace of step times is an array [steps, workers] of seconds above 0")

    @property
    def is_steady(self) -> bool:
        """Whether every step of every worker takes the same time."""
        return self.trace is None and not self.between_workers and not self.between_steps


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The properties of machines that a prediction depends on."""

    step_time: StepTime | Sequence[StepTime]
    """One for all workers, or one for each."""
    round_cost: RoundCost
    round_shares: tuple[float, float] = (0.0, 1.0)
    """The shares of a round's cost that runs record as computing and as communicating; the rest counts as waiting."""
    exchange_cost: ExchangeCost | None = None
    """The cost of an exchange, for strategies without rounds. Default: `round_cost` for two workers that swap."""
    overhead: float = 0.0
    """Seconds of every round in addition to averaging weights: compression, outer optimizer, the optimizer's state."""
    overhead_shares: tuple[float, float] = (1.0, 0.0)
    """The shares of the overhead that runs record as computing and as communicating; the rest counts as waiting."""
    start: float = 0.0
    """Seconds before the first step."""
    evaluation: float = 0.0
    """Seconds of the evaluation after each epoch."""
    save: float = 0.0
    """Seconds of saving after each epoch."""
    model_error: float = 0.0
    """Relative standard error of the calibration; it widens the interval."""
    calibrated: bool = False
    """Whether the step times were measured."""

    def step_times(self, workers: int) -> list[StepTime]:
        if isinstance(self.step_time, StepTime):
            return [self.step_time] * workers
        if len(self.step_time) != workers:
            raise ExperimentError(
                f"the hardware has step times of {len(self.step_time)} workers; the workload has {workers} workers"
            )
        return list(self.step_time)

    def is_steady(self, workers: int) -> bool:
        """Return whether nothing is random: every run takes the same time."""
        distinct = {id(step_time): step_time for step_time in self.step_times(workers)}
        return all(step_time.is_steady for step_time in distinct.values())


Sigma = Annotated[float, Field(ge=0, le=2)]


class Stragglers(Section):
    """The variation of step times, in addition to the profile's measurements."""

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

    def slowdown(self, workers: int) -> float:
        """Return the factor by which a step slows down on a node with this many workers, if threads outnumber cores."""
        return max(1.0, workers * self.threads / self.cores)

    def on_nodes(self, used: int) -> list[int]:
        """Return the number of workers on each node for a total of `used`; nodes are filled one after another."""
        full, rest = divmod(used, self.workers)
        return [self.workers] * full + [rest] * (rest > 0)


class GroupLink(Section):
    """The link between two groups."""

    groups: Annotated[tuple[Text, Text], AsTuple]
    """The names of two groups."""
    link: LinkField
    shared: bool = False
    """Whether all messages between the two groups share one line."""
