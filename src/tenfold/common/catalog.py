"""Every family whose members an experiment chooses by name.

A line is a name and where the member is defined; the member is imported when it is first used, so that names can be
checked and listed without importing torch. To add a member, write it in a new file and add its line here. Metrics have
a table of their own, `metric_table.py`.
"""

from typing import Any

from tenfold.common.registry import LazyRegistry, Registry
from tenfold.errors import DataError, MachineError, ModelError

STRATEGIES: Registry[Any] = LazyRegistry(
    "strategy",
    {
        "allreduce": "tenfold.mixing.strategies.allreduce:AllReduce",
        "butterfly": "tenfold.mixing.strategies.butterfly:Butterfly",
        "ring": "tenfold.mixing.strategies.ring:Ring",
        "hopping-ring": "tenfold.mixing.strategies.hopping_ring:HoppingRing",
        "gossip": "tenfold.mixing.strategies.gossip:Gossip",
        "hierarchical": "tenfold.mixing.strategies.hierarchical:Hierarchical",
        "parameter-server": "tenfold.mixing.strategies.parameter_server:ParameterServer",
        "none": "tenfold.mixing.strategies.no_mixing:NoMixing",
        "downpour": "tenfold.mixing.strategies.downpour:Downpour",
        "easgd": "tenfold.mixing.strategies.easgd:EASGD",
        "ad-psgd": "tenfold.mixing.strategies.ad_psgd:ADPSGD",
    },
)
OUTER: Registry[Any] = LazyRegistry(
    "outer optimizer",
    {
        "none": "tenfold.mixing.outer.plain_average:PlainAverage",
        "bmuf": "tenfold.mixing.outer.bmuf:BMUF",
        "slowmo": "tenfold.mixing.outer.slowmo:SlowMo",
        "diloco": "tenfold.mixing.outer.diloco:DiLoCo",
    },
)
COMPRESSIONS: Registry[Any] = LazyRegistry(
    "compression",
    {
        "none": "tenfold.mixing.compression.no_compression:NoCompression",
        "bf16": "tenfold.mixing.compression.bf16:BF16",
        "int8": "tenfold.mixing.compression.int8:Int8",
        "topk": "tenfold.mixing.compression.topk:TopK",
        "1bit": "tenfold.mixing.compression.onebit:OneBit",
    },
)
NETWORK_TRANSPORTS: Registry[Any] = LazyRegistry(
    "transport",
    {
        "torch": "tenfold.transport.network.torch_distributed:TorchDistributed",
        "mpi": "tenfold.transport.network.mpi:MPI",
    },
    MachineError,
)
LR_SCALINGS: Registry[Any] = LazyRegistry(
    "learning rate scaling",
    {
        "auto": "tenfold.mixing.rate_scaling:scale_auto",
        "none": "tenfold.mixing.rate_scaling:scale_none",
        "linear": "tenfold.mixing.rate_scaling:scale_linear",
        "sqrt": "tenfold.mixing.rate_scaling:scale_sqrt",
    },
)
MODELS: Registry[Any] = LazyRegistry(
    "model",
    {
        "lenet5": "tenfold.models.lenet5:lenet5",
        "cnn": "tenfold.models.cnn:cnn",
        "mlp": "tenfold.models.mlp:mlp",
        "recommender": "tenfold.models.recommender:recommender",
    },
    ModelError,
)
SOURCES: Registry[Any] = LazyRegistry(
    "data set",
    {
        "digits": "tenfold.data.sources.digits:DIGITS",
        "mnist": "tenfold.data.sources.mnist:MNIST",
        "fashion-mnist": "tenfold.data.sources.fashion_mnist:FASHION_MNIST",
        "tweets": "tenfold.data.sources.tweets:TWEETS",
        "speech": "tenfold.data.sources.speech:SPEECH",
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
        "muon": "tenfold.training.optimizers.muon:Muon",
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
        "tensorboard": "tenfold.report.loggers.tensorboard_logger:TensorBoardLogger",
        "mlflow": "tenfold.report.loggers.mlflow_logger:MlflowLogger",
    },
)
SHARD_KINDS: Registry[Any] = LazyRegistry(
    "kind of shards",
    {
        "iid": "tenfold.data.shards:iid",
        "contiguous": "tenfold.data.shards:contiguous",
        "label-skew": "tenfold.data.shards:label_skew",
        "fractions": "tenfold.data.shards:fractions",
    },
)
FOLD_KINDS: Registry[Any] = LazyRegistry(
    "kind of folds",
    {
        "plain": "tenfold.data.folds:plain",
        "stratified": "tenfold.data.folds:stratified",
        "group": "tenfold.data.folds:group",
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
