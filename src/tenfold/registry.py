"""Registries: the members of a family (sources, models, optimizers, strategies, engines, ...) by name.

To add a built-in member, add its name here; those of installed packages come by their entry points.
"""

import difflib
import importlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from multiprocessing import parent_process
from typing import Any, Generic, TypeVar

from tenfold.errors import DataError, ExperimentError, MachineError, ModelError, TenfoldError

T = TypeVar("T")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if no name is near."""
    return next(iter(difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.6)), None)


def suggest(name: str, names: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return "did you mean 'x'? known: x, y, z", or only the list when nothing is near.

    `aliases` are names that others use, with the known name of each.
    """
    names = list(names)
    near = (aliases or {}).get(name.lower()) or nearest(name, names)
    listed = f"known: {', '.join(names)}"
    return f"did you mean '{near}'? {listed}" if near is not None else listed


@cache
def scan() -> Any:
    """Return the entry points of all installed packages, which takes 20 ms to find."""
    return entry_points()


def installed(group: str) -> EntryPoints:
    """Return the entry points of a group."""
    points: EntryPoints = scan().select(group=group)
    return points


def package_of(point: EntryPoint) -> str:
    """Return the name of the installed package that an entry point belongs to."""
    return point.dist.name if point.dist is not None else point.module


def load(point: EntryPoint, kind: str, error: type[TenfoldError] = ExperimentError) -> Any:
    """Return the object of an entry point; raise an error that names it and its package if it cannot be imported."""
    try:
        return point.load()
    except Exception as problem:
        raise error(
            f"the {kind} '{point.name}' of the installed package {package_of(point)} (entry point {point.value}) "
            f"cannot be imported: {type(problem).__name__}: {problem}"
        ) from problem


class Registry(Generic[T]):
    """The members of one family by name; the error for an unknown name lists the known ones.

    A member is given as an object, or as an import path "package.module:name" that is imported when it is first used.
    Installed packages add members by entry points of the group "tenfold.GROUP".
    """

    def __init__(
        self,
        kind: str,
        members: Mapping[str, T | str],
        *,
        group: str = "",
        error: type[TenfoldError] = ExperimentError,
    ) -> None:
        self.kind = kind
        self.built_in: dict[str, T | str] = dict(members)
        self._group, self._error = group, error
        self._warned: set[str] = set()

    @cached_property
    def plugins(self) -> Mapping[str, EntryPoint]:
        """The members of installed packages, which cannot replace built-in ones or each other."""
        members: dict[str, EntryPoint] = {}
        for point in installed(f"tenfold.{self._group}") if self._group else ():
            if point.name not in self.built_in:
                members.setdefault(point.name, point)
        return members

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise self._error(f"unknown {self.kind} '{name}'; {suggest(str(name), self)}") from None
        self._warn_of_others(name)
        member: Any = self.built_in.get(name)
        if member is None:
            return load(self.plugins[name], self.kind, self._error)  # type: ignore[no-any-return]
        if isinstance(member, str):
            module, _, attribute = member.partition(":")
            return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
        return member  # type: ignore[no-any-return]

    def _warn_of_others(self, name: str) -> None:
        """Warn of installed packages that have a member of this name, which is not used."""
        if parent_process() is not None or not self._group or name in self._warned:
            return  # workers would repeat it
        self._warned.add(name)
        used = None if name in self.built_in else self.plugins[name]
        for other in installed(f"tenfold.{self._group}"):
            if other.name == name and other is not used:
                owner = "Tenfold" if used is None else package_of(used)
                warnings.warn(
                    f"the {self.kind} '{name}' of the installed package {package_of(other)} is not used, because "
                    f"{owner} has one of this name; where a field takes import paths, use {other.value}",
                    stacklevel=3,
                )

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.built_in or name in self.plugins)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.built_in, *self.plugins))

    def __len__(self) -> int:
        return len(self.built_in) + len(self.plugins)


# Every family whose members an experiment chooses by name, with where each member is defined. Members are imported when
# they are first used, so that names can be checked and listed without torch. Metrics and optimizers are in tables with
# their traits, `common/metric_traits.py` and `common/optimizer_defaults.py`.

STRATEGIES: Registry[Any] = Registry(
    "strategy",
    {
        "allreduce": "tenfold.mixing.strategies:AllReduce",
        "butterfly": "tenfold.mixing.strategies:Butterfly",
        "ring": "tenfold.mixing.strategies:Ring",
        "hopping-ring": "tenfold.mixing.strategies:HoppingRing",
        "gossip": "tenfold.mixing.strategies:Gossip",
        "hierarchical": "tenfold.mixing.strategies:Hierarchical",
        "parameter-server": "tenfold.mixing.strategies:ParameterServer",
        "none": "tenfold.mixing.strategies:NoMixing",
        "downpour": "tenfold.mixing.strategies:Downpour",
        "easgd": "tenfold.mixing.strategies:EASGD",
        "ad-psgd": "tenfold.mixing.strategies:ADPSGD",
    },
    group="strategies",
)
OUTER: Registry[Any] = Registry(
    "outer optimizer",
    {
        "none": "tenfold.mixing.outer:PlainAverage",
        "bmuf": "tenfold.mixing.outer:BMUF",
        "slowmo": "tenfold.mixing.outer:SlowMo",
        "diloco": "tenfold.mixing.outer:DiLoCo",
    },
    group="outer",
)
COMPRESSIONS: Registry[Any] = Registry(
    "compression",
    {
        "none": "tenfold.mixing.compression:NoCompression",
        "bf16": "tenfold.mixing.compression:BF16",
        "int8": "tenfold.mixing.compression:Int8",
        "topk": "tenfold.mixing.compression:TopK",
        "1bit": "tenfold.mixing.compression:OneBit",
    },
    group="compressions",
)
NETWORK_TRANSPORTS: Registry[Any] = Registry(
    "transport",
    {
        "torch": "tenfold.transport.torch_distributed:TorchDistributed",
        "mpi": "tenfold.transport.mpi:MPI",
    },
    error=MachineError,
    group="transports",
)
ENGINES: Registry[Any] = Registry(
    "engine",
    {
        "serial": "tenfold.engines.processes:Serial",
        "processes": "tenfold.engines.processes:Processes",
        "one-device": "tenfold.engines.one_device:OneDevice",
        "launched": "tenfold.engines.launched:Launched",
        "virtual": "tenfold.prediction.virtual_engine:Virtual",
    },
    group="engines",
)
EXECUTORS: Registry[Any] = Registry(
    "executor",
    {
        "processes": "tenfold.executors.submitting:ProcessPool",
        "dask": "tenfold.executors.submitting:dask",
        "ray": "tenfold.executors.ray:RayExecutor",
        "slurm": "tenfold.executors.slurm:Slurm",
    },
    group="executors",
)
MODELS: Registry[Any] = Registry(
    "model",
    {
        "lenet5": "tenfold.models.networks:lenet5",
        "cnn": "tenfold.models.networks:cnn",
        "mlp": "tenfold.models.networks:mlp",
    },
    error=ModelError,
    group="models",
)
SOURCES: Registry[Any] = Registry(
    "data set",
    {
        "digits": "tenfold.data.sources:DIGITS",
        "mnist": "tenfold.data.sources:MNIST",
        "fashion-mnist": "tenfold.data.sources:FASHION_MNIST",
    },
    error=DataError,
    group="data",
)
SCHEDULES: Registry[Any] = Registry(
    "schedule",
    {
        "constant": "tenfold.training.schedules:constant",
        "cosine": "tenfold.training.schedules:cosine",
        "linear": "tenfold.training.schedules:linear",
        "one-cycle": "tenfold.training.schedules:one_cycle",
    },
    group="schedules",
)
LOSSES: Registry[Any] = Registry(
    "loss",
    {
        "cross-entropy": "torch.nn.functional:cross_entropy",
        "mse": "tenfold.training.measures:mean_square_loss",
        "l1": "tenfold.training.measures:mean_absolute_loss",
        "bce": "tenfold.training.measures:binary_cross_entropy_loss",
        "network": "tenfold.training.measures:loss_of_network",
    },
    group="losses",
)
LOGGERS: Registry[Any] = Registry(
    "logger",
    {
        "tensorboard": "tenfold.reports.loggers:TensorBoardLogger",
        "mlflow": "tenfold.reports.loggers:MlflowLogger",
    },
    group="loggers",
)
