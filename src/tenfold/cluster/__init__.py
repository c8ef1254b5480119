"""Virtual hardware and its clock: how long a run would take on machines that are not there."""

from tenfold.cluster.asynchronous import Event, events
from tenfold.cluster.clock import Span, Timing, run_clock
from tenfold.cluster.cluster import Cluster
from tenfold.cluster.costs import LinkPrice, Wiring
from tenfold.cluster.groups import Between, Group, Stragglers
from tenfold.cluster.hardware import ExchangePrice, Hardware, RoundLike, RoundPrice, StepTime, StrategyLike
from tenfold.cluster.links import LINKS, Link
from tenfold.cluster.plan import Plan
from tenfold.cluster.prediction import Prediction, predict

__all__ = [
    "LINKS",
    "Between",
    "Cluster",
    "Event",
    "ExchangePrice",
    "Group",
    "Hardware",
    "Link",
    "LinkPrice",
    "Plan",
    "Prediction",
    "RoundLike",
    "RoundPrice",
    "Span",
    "StepTime",
    "Stragglers",
    "StrategyLike",
    "Timing",
    "Wiring",
    "events",
    "predict",
    "run_clock",
]
