"""Registries: the members of a family (sources, models, optimizers, strategies, ...) by name."""

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
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

    The names in an experiment are checked before, when it is made (`OneOf` in `experiment/values.py`).
    """

    def __init__(self, kind: str, members: Mapping[str, T], error: type[TenfoldError] = ExperimentError) -> None:
        self.kind = kind
        self._members: dict[str, Any] = dict(members)
        self._error = error

    def __getitem__(self, name: str) -> T:
        try:
            return self._members[name]  # type: ignore[no-any-return]
        except (KeyError, TypeError):  # TypeError: from a file, a list or a table in the place of a name
            raise self._error(f"unknown {self.kind} '{name}'; {suggest(str(name), self)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class LazyRegistry(Registry[T]):
    """A registry of import paths, "package.module:name"; a member is imported when it is first asked for."""

    def __init__(self, kind: str, paths: Mapping[str, str], error: type[TenfoldError] = ExperimentError) -> None:
        super().__init__(kind, {}, error)
        self._members.update(paths)

    def __getitem__(self, name: str) -> T:
        member: Any = super().__getitem__(name)
        if isinstance(member, str):
            module, _, attribute = member.partition(":")
            member = self._members[name] = getattr(importlib.import_module(module), attribute)
        return member  # type: ignore[no-any-return]


# Every family whose members an experiment chooses by name.
#
# A line is a name and where the member is defined; the member is imported when it is first used, so that names can be
# checked and listed without importing torch. To add a member, write it in a new file and add its line here. Metrics
# have a table of their own, `metric_table.py`.

STRATEGIES: Registry[Any] = LazyRegistry(
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
)
OUTER: Registry[Any] = LazyRegistry(
    "outer optimizer",
    {
        "none": "tenfold.mixing.outer:PlainAverage",
        "bmuf": "tenfold.mixing.outer:BMUF",
        "slowmo": "tenfold.mixing.outer:SlowMo",
        "diloco": "tenfold.mixing.outer:DiLoCo",
    },
)
COMPRESSIONS: Registry[Any] = LazyRegistry(
    "compression",
    {
        "none": "tenfold.mixing.compression:NoCompression",
        "bf16": "tenfold.mixing.compression:BF16",
        "int8": "tenfold.mixing.compression:Int8",
        "topk": "tenfold.mixing.compression:TopK",
        "1bit": "tenfold.mixing.compression:OneBit",
    },
)
NETWORK_TRANSPORTS: Registry[Any] = LazyRegistry(
    "transport",
    {
        "torch": "tenfold.transport.torch_distributed:TorchDistributed",
        "mpi": "tenfold.transport.mpi:MPI",
    },
    MachineError,
)
LR_SCALINGS: Registry[Any] = LazyRegistry(
    "learning rate scaling",
    {
        "auto": "tenfold.mixing.builders:scale_auto",
        "none": "tenfold.mixing.builders:scale_none",
        "linear": "tenfold.mixing.builders:scale_linear",
        "sqrt": "tenfold.mixing.builders:scale_sqrt",
    },
)
MODELS: Registry[Any] = LazyRegistry(
    "model",
    {
        "lenet5": "tenfold.models.networks:lenet5",
        "cnn": "tenfold.models.networks:cnn",
        "mlp": "tenfold.models.networks:mlp",
        "recommender": "tenfold.papers.recommend:recommender",
    },
    ModelError,
)
SOURCES: Registry[Any] = LazyRegistry(
    "data set",
    {
        "digits": "tenfold.data.digits:DIGITS",
        "mnist": "tenfold.data.mnist:MNIST",
        "fashion-mnist": "tenfold.data.mnist:FASHION_MNIST",
        "tweets": "tenfold.papers.tweets:TWEETS",
        "speech": "tenfold.papers.speech:SPEECH",
    },
    DataError,
)
OPTIMIZERS: Registry[Any] = LazyRegistry(
    "optimizer",
    {
        "sgd": "torch.optim:SGD",
        "adam": "torch.optim:Adam",
        "adamw": "torch.optim:AdamW",
        "rmsprop": "torch.optim:RMSprop",
        "adagrad": "torch.optim:Adagrad",
        "lbfgs": "torch.optim:LBFGS",
        "muon": "tenfold.training.muon:Muon",
    },
)
SCHEDULES: Registry[Any] = LazyRegistry(
    "schedule",
    {
        "constant": "tenfold.training.schedules:constant",
        "cosine": "tenfold.training.schedules:cosine",
        "linear": "tenfold.training.schedules:linear",
        "one-cycle": "tenfold.training.schedules:one_cycle",
    },
)
LOSSES: Registry[Any] = LazyRegistry(
    "loss",
    {
        "cross-entropy": "torch.nn.functional:cross_entropy",
        "mse": "tenfold.training.measures:mean_square_loss",
        "l1": "tenfold.training.measures:mean_absolute_loss",
        "bce": "tenfold.training.measures:binary_cross_entropy_loss",
        "network": "tenfold.training.measures:loss_of_network",
    },
)
LOGGERS: Registry[Any] = LazyRegistry(
    "logger",
    {
        "tensorboard": "tenfold.report.loggers:TensorBoardLogger",
        "mlflow": "tenfold.report.loggers:MlflowLogger",
    },
)
SHARD_KINDS: Registry[Any] = LazyRegistry(
    "kind of shards",
    {
        "iid": "tenfold.data.splitting:iid",
        "contiguous": "tenfold.data.splitting:contiguous",
        "label-skew": "tenfold.data.splitting:label_skew",
        "fractions": "tenfold.data.splitting:fractions",
    },
)
FOLD_KINDS: Registry[Any] = LazyRegistry(
    "kind of folds",
    {
        "plain": "tenfold.data.splitting:plain",
        "stratified": "tenfold.data.splitting:stratified",
        "group": "tenfold.data.splitting:group",
    },
)
FOLD_MODES: Registry[Any] = LazyRegistry(
    "fold mode",
    {
        "folds-over-workers": "tenfold.crossval.modes:folds_over_workers",
        "data-and-folds": "tenfold.crossval.modes:data_and_folds",
        "fold-by-fold": "tenfold.crossval.modes:fold_by_fold",
        "fused": "tenfold.crossval.modes:fused",
    },
)
