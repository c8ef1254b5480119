"""Virtual hardware and its clock: predict the time of a run on machines that you do not have."""

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.event_clock import ClockEvent, clock_events
from tenfold.cluster.hardware import LINKS, Hardware, Link, NodeGroup, StepTime
from tenfold.cluster.round_clock import run_round_clock
from tenfold.cluster.time_prediction import predict_time
from tenfold.cluster.workload import Workload

__all__ = [
    "LINKS",
    "ClockEvent",
    "Cluster",
    "Hardware",
    "Link",
    "NodeGroup",
    "StepTime",
    "Workload",
    "clock_events",
    "predict_time",
    "run_round_clock",
]
