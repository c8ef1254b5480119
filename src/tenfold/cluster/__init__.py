"""Virtual hardware and its clock: how long a run would take on machines that are not there."""

from tenfold.cluster.clock import Span, Timing, run_clock
from tenfold.cluster.cluster import Cluster
from tenfold.cluster.costs import LinkPrice, Wiring
from tenfold.cluster.event_clock import Event, events
from tenfold.cluster.groups import Between, Group, Stragglers
from tenfold.cluster.hardware import ExchangePrice, Hardware, RoundPrice, StepTime
from tenfold.cluster.links import LINKS, Link
from tenfold.cluster.prediction import Prediction, predict
from tenfold.cluster.workload import Workload

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
    "Prediction",
    "RoundPrice",
    "Span",
    "StepTime",
    "Stragglers",
    "Timing",
    "Wiring",
    "Workload",
    "events",
    "predict",
    "run_clock",
]
