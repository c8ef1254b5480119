"""Virtual hardware and its clock: how long a run would take on machines that you do not have."""

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.costs import LinkPrice, Wiring
from tenfold.cluster.event_clock import ClockEvent, clock_events
from tenfold.cluster.groups import GroupLink, NodeGroup, Stragglers
from tenfold.cluster.hardware import ExchangePrice, Hardware, RoundPrice, StepTime
from tenfold.cluster.links import LINKS, Link
from tenfold.cluster.round_clock import run_round_clock
from tenfold.cluster.time_prediction import Prediction, predict_time
from tenfold.cluster.timing import ClockSpan, Timing
from tenfold.cluster.workload import Workload

__all__ = [
    "LINKS",
    "ClockEvent",
    "ClockSpan",
    "Cluster",
    "ExchangePrice",
    "GroupLink",
    "Hardware",
    "Link",
    "LinkPrice",
    "NodeGroup",
    "Prediction",
    "RoundPrice",
    "StepTime",
    "Stragglers",
    "Timing",
    "Wiring",
    "Workload",
    "clock_events",
    "predict_time",
    "run_round_clock",
]
