"""A cluster: nodes, links, shared resources, and stragglers; a value that loads from TOML.

    name = "edge"
    adding = 1e-10                      # seconds to add one byte

    [stragglers]
    noise = "log-normal"                # or shifted-exponential
    persistent = 0.05                   # spread between workers, for the whole run
    transient = 0.1                     # spread between steps

    [[groups]]
    name = "rack"
    count = 8                           # nodes
    workers = 2                         # on each node
    cores = 16
    threads = 8                         # of each worker
    link = "10gbe"                      # between nodes; a name or {latency = ..., bandwidth = ...}

    [[groups]]
    name = "phones"
    count = 4
    speed = 0.1                         # a tenth of the profile's speed
    link = "wifi"

    [[between]]
    groups = ["rack", "phones"]
    link = {latency = 0.01, bandwidth = 5e6}
    shared = true                       # one line for all of them

Only `groups` is needed; workers fill node after node, in the order of the groups.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator

from tenfold.cluster.costs import LinkCost, Wiring
from tenfold.cluster.hardware import GroupLink, Hardware, Link, LinkField, NodeGroup, StepTime, Stragglers
from tenfold.common.files import read_toml, write_toml
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment, Section
from tenfold.experiment.values import AsTuple, Text, explain, format_value
from tenfold.registry import Registry, suggest


class Cluster(Section):
    """A description of hardware for predictions: groups of nodes and the links between them."""

    name: Text = ""
    """A title for tables and plots."""
    groups: Annotated[tuple[NodeGroup, ...], AsTuple, Field(min_length=1)]
    between: Annotated[tuple[GroupLink, ...], AsTuple] = ()
    """Links between groups; two groups that are not listed have the slower of their own."""
    server: LinkField | None = None
    """The link of a parameter server. Default: the workers'."""
    adding: Annotated[float, Field(ge=0)] = 1e-10
    """Seconds to add one received byte."""
    stragglers: Stragglers = Stragglers()

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ExperimentError(explain(error, type(self))) from None

    @field_validator("groups")
    @classmethod
    def _named_apart(cls, groups: tuple[NodeGroup, ...]) -> tuple[NodeGroup, ...]:
        names = [group.name for group in groups]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two groups are called '{twice}'; give each a different name")
        return groups

    @model_validator(mode="after")
    def _links_known_groups(self) -> Self:
        names = [group.name for group in self.groups]
        for name in (name for line in self.between for name in line.groups):
            if name not in names:
                raise ValueError(f"between: unknown group '{name}'; {suggest(name, names)}")
        pairs = [frozenset(line.groups) for line in self.between]
        twice = next((pair for pair in pairs if pairs.count(pair) > 1), None)
        if twice is not None:
            raise ValueError(f"between: two links connect {' and '.join(sorted(twice))}; remove one of them")
        return self

    @classmethod
    def of(cls, workers: int, link: str | Link | Mapping[str, float] = "10gbe", **fields: Any) -> Self:
        """Return nodes with one worker each and the same link between any two; `fields` are a group's or cluster's."""
        own = {name: fields.pop(name) for name in list(fields) if name in cls.model_fields and name != "name"}
        given = dict(link) if isinstance(link, Mapping) else link
        try:
            nodes = NodeGroup(**{"count": workers, "link": given} | fields)
        except ValidationError as error:
            raise ExperimentError(explain(error, NodeGroup)) from None
        return cls(groups=(nodes,), **own)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        path = Path(path)
        fields = read_toml(path, "a cluster", "it should be a TOML file that describes a cluster")
        try:
            return cls(**fields)
        except ExperimentError as error:
            raise ExperimentError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None

    def save(self, path: str | Path) -> None:
        """Write the cluster as TOML, without unset fields; links that are presets are written by name."""
        write_toml(Path(path), self.model_dump(mode="json", exclude_none=True))

    @property
    def workers(self) -> int:
        return sum(group.count * group.workers for group in self.groups)

    def placed(self, workers: int) -> list[int]:
        """Return how many of the workers each group runs: they fill one node after another, group by group."""
        if workers > self.workers:
            groups = ", ".join(f"{group.name} {group.count} x {group.workers}" for group in self.groups)
            raise ExperimentError(
                f"the cluster has room for {self.workers} workers ({groups}), not for {workers}; raise a group's count"
            )
        placed_workers, left = [], workers
        for group in self.groups:
            placed_workers.append(min(left, group.count * group.workers))
            left -= placed_workers[-1]
        return placed_workers

    def round_cost(self, workers: int) -> LinkCost:
        return LinkCost(self.wiring(workers))

    def wiring(self, workers: int) -> Wiring:
        placed_workers = self.placed(workers)
        table: list[Link] = [group.inside for group in self.groups]
        size = len(self.groups)
        across = np.zeros((size, size), dtype=np.int64)
        shares_line = np.zeros((size, size), dtype=bool)
        lines = {frozenset(line.groups): line for line in self.between}
        for g, h in combinations_with_replacement(range(size), 2):
            one, other = self.groups[g], self.groups[h]
            line = lines.get(frozenset((one.name, other.name)))
            slower = min(one.link, other.link, key=lambda link: link.bandwidth)
            across[g, h] = across[h, g] = len(table)
            shares_line[g, h] = shares_line[h, g] = line is not None and line.shared
            table.append(line.link if line is not None else slower)
        if self.server is not None:
            table.append(self.server)
        node_group = np.repeat(np.arange(size), placed_workers)
        first = np.concatenate([[0], np.cumsum(placed_workers)[:-1]])
        nodes_before = np.concatenate([[0], np.cumsum([group.count for group in self.groups])[:-1]])
        per_node = np.array([group.workers for group in self.groups])
        return Wiring(
            latency=np.array([link.latency for link in table]),
            per_byte=np.array([link.per_byte for link in table]),
            node_group=node_group,
            node=nodes_before[node_group] + (np.arange(workers) - first[node_group]) // per_node[node_group],
            inside=np.arange(size),
            across=across,
            shares_port=np.array([group.shared_port for group in self.groups]),
            shares_line=shares_line,
            server=len(table) - 1 if self.server is not None else None,
            adding=self.adding,
        )

    @property
    def has_given_times(self) -> bool:
        """Whether the step times of all groups are given, so that none has to be measured."""
        return all(group.step_seconds is not None for group in self.groups)

    def step_times(self, workers: int, measured: StepTime | Mapping[str, StepTime] | None = None) -> list[StepTime]:
        """Return each worker's step time, from a profile's (for all groups, or by group) or as described by hand."""
        times: list[StepTime] = []
        for group, placed_workers in zip(self.groups, self.placed(workers), strict=True):
            step_time = measured if measured is None or isinstance(measured, StepTime) else measured.get(group.name)
            for on_node in group.on_nodes(placed_workers):
                times += [self._step_time(group, step_time, on_node)] * on_node
        return times

    def slowdown(self, workers: int) -> float:
        """Return how much longer steps take on the busiest node, if the threads of its workers outnumber its cores."""
        placed = zip(self.groups, self.placed(workers), strict=True)
        return max(
            group.slowdown(on_node)
            for group, workers_of_group in placed
            for on_node in group.on_nodes(workers_of_group)
        )

    def _step_time(self, group: NodeGroup, measured: StepTime | None, on_node: int) -> StepTime:
        if group.step_seconds is not None:
            base = StepTime(mean=group.step_seconds)
        elif measured is not None:
            base = measured
        else:
            raise ExperimentError(
                f"the time of a step in group '{group.name}' is not known; calibrate, or set its step_seconds"
            )
        factor = group.slowdown(on_node) / group.speed
        base = replace(base, mean=base.mean * factor, fixed=base.fixed * factor)
        stragglers = self.stragglers
        if not (stragglers.persistent or stragglers.transient):
            return base
        most = 1.0 if stragglers.noise == "shifted-exponential" else np.inf  # a step cannot take less than 0 seconds
        return replace(
            base,
            noise=stragglers.noise,
            between_workers=min(most, float(np.hypot(base.between_workers, stragglers.persistent))),
            between_steps=min(most, float(np.hypot(base.between_steps, stragglers.transient))),
            trace=None,
        )

    def hardware(
        self, workers: int, measured: StepTime | Mapping[str, StepTime] | None = None, **extra: Any
    ) -> Hardware:
        """Return the hardware of the first workers; `extra` are further fields of it."""
        cost = self.round_cost(workers)
        return Hardware(
            step_time=self.step_times(workers, measured),
            round_cost=cost,
            exchange_cost=cost.exchange,
            calibrated=measured is not None and all(group.step_seconds is None for group in self.groups),
            **extra,
        )


DEFAULT_LINK = "10gbe"
CLUSTERS: Registry[dict[str, Any]] = Registry("cluster", {}, group="clusters")
"""Clusters of installed packages, as the fields of a `Cluster`; their steps take as long as on this machine."""


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
        cluster.placed(experiment.parallel.workers)
    return cluster


def _described(experiment: Experiment) -> ClusterOrHere:
    given, link = experiment.machine.cluster, experiment.machine.link
    if given is not None and link is not None:
        raise ExperimentError(
            f"machine.link = {format_value(link)} and machine.cluster are both set, but the cluster has its own links; "
            "set only one of them"
        )
    if given == HERE.value:
        return HERE
    threads = experiment.machine.threads or 1
    if given is None:
        try:
            return Cluster.of(experiment.parallel.workers, link or DEFAULT_LINK, threads=threads, cores=threads)
        except ExperimentError as error:
            raise ExperimentError("\n".join(f"machine.{line}" for line in str(error).splitlines())) from None
    if isinstance(given, str) and given in CLUSTERS:
        preset = CLUSTERS[given]
        return Cluster(**preset | {"groups": [group | {"threads": threads} for group in preset["groups"]]})
    return Cluster.load(given) if isinstance(given, str) else Cluster(**given)
