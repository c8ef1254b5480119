"""One replica: its optimizer steps, and its evaluation."""

from tenfold.common.metric_traits import METRICS
from tenfold.common.optimizer_defaults import OPTIMIZERS
from tenfold.training.evaluation import all_targets, evaluate, measure, predict
from tenfold.training.flat_weights import FlatState, flat_size
from tenfold.training.measures import LOSSES, choose_loss, choose_metrics
from tenfold.training.optimizers import base_lr
from tenfold.training.replica import Replica

__all__ = [
    "LOSSES",
    "METRICS",
    "OPTIMIZERS",
    "FlatState",
    "Replica",
    "all_targets",
    "base_lr",
    "choose_loss",
    "choose_metrics",
    "evaluate",
    "flat_size",
    "measure",
    "predict",
]
