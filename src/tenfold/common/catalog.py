"""Registries: the members of a family (sources, models, optimizers, strategies, ...) by name."""

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from tenfold.errors import DataError, ExperimentError, MachineError, ModelError, TenfoldError

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if no name is near."""
    return next(iter(difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)), None)


def suggest(name: str, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return "did you mean 'x'? known: x, y, z", or only the list when nothing is near.

    `aliases` are names that others use, with the known name of each.
    """
    known = list(known)
    near = (aliases or {}).get(name.lower()) or nearest(name, known)
    listed = f"known: {', '.join(known)}"
    return f"did you mean '{near}'? {listed}" if near is not None else listed


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

    @cached_property
    def plugins(self) -> Mapping[str, EntryPoint]:
        """The members of installed packages, which cannot replace built-in ones."""
        points = entry_points(group=f"tenfold.{self._group}") if self._group else ()
        return {point.name: point for point in points if point.name not in self.built_in}

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise self._error(f"unknown {self.kind} '{name}'; {suggest(str(name), self)}") from None
        member: Any = self.built_in.get(name)
        if isinstance(member, str):
            module, _, attribute = member.partition(":")
            return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
        return self.plugins[name].load() if member is None else member  # type: ignore[no-any-return]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.built_in or name in self.plugins)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.built_in, *self.plugins))

    def __len__(self) -> int:
        return len(self.built_in) + len(self.plugins)


# Every family whose members an experiment chooses by name, with where each member is defined. Members are imported when
# they are first used, so that names can be checked and listed without torch. Metrics have a table of their own,
# `metric_table.py`.

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
        "serial": "tenfold.engines.serial:Serial",
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
        "processes": "tenfold.executors.engines:processes",
        "dask": "tenfold.executors.engines:dask",
        "ray": "tenfold.executors.engines:RayExecutor",
    },
    group="executors",
)
LR_SCALINGS: Registry[Any] = Registry(
    "learning rate scaling",
    {
        "auto": "tenfold.mixing.builders:scale_auto",
        "none": "tenfold.mixing.builders:scale_none",
        "linear": "tenfold.mixing.builders:scale_linear",
        "sqrt": "tenfold.mixing.builders:scale_sqrt",
    },
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
        "digits": "tenfold.data.digits:DIGITS",
        "mnist": "tenfold.data.mnist:MNIST",
        "fashion-mnist": "tenfold.data.mnist:FASHION_MNIST",
    },
    error=DataError,
    group="data",
)
OPTIMIZERS: Registry[Any] = Registry(
    "optimizer",
    {
        "sgd": "torch.optim:SGD",
        "adam": "torch.optim:Adam",
        "adamw": "torch.optim:AdamW",
        "rmsprop": "torch.optim:RMSprop",
        "adagrad": "torch.optim:Adagrad",
        "lbfgs": "torch.optim:LBFGS",
        "muon": "tenfold.training.muon:Muon",
        "ng-sgd": "tenfold.training.natural_gradient:NaturalGradientSGD",
    },
    group="optimizers",
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
SHARD_KINDS: Registry[Any] = Registry(
    "kind of shards",
    {
        "iid": "tenfold.data.splitting:iid",
        "contiguous": "tenfold.data.splitting:contiguous",
        "label-skew": "tenfold.data.splitting:label_skew",
        "fractions": "tenfold.data.splitting:fractions",
    },
)
FOLD_KINDS: Registry[Any] = Registry(
    "kind of folds",
    {
        "plain": "tenfold.data.splitting:plain",
        "stratified": "tenfold.data.splitting:stratified",
        "group": "tenfold.data.splitting:group",
    },
)
FOLD_MODES: Registry[Any] = Registry(
    "fold mode",
    {
        "folds-over-workers": "tenfold.crossval.modes:folds_over_workers",
        "data-and-folds": "tenfold.crossval.modes:data_and_folds",
        "fold-by-fold": "tenfold.crossval.modes:fold_by_fold",
        "stacked": "tenfold.crossval.modes:stacked",
    },
)
