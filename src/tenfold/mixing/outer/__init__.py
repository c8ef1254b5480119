"""Outer optimizers: what the mean of the replicas is used for."""

from tenfold.common.registry import Registry
from tenfold.mixing.outer.base import OuterOptimizer, State
from tenfold.mixing.outer.bmuf import BMUF
from tenfold.mixing.outer.diloco import DiLoCo
from tenfold.mixing.outer.none import PlainAverage
from tenfold.mixing.outer.slowmo import SlowMo

OUTER: Registry[type[OuterOptimizer]] = Registry(
    "outer optimizer", {member.name: member for member in (PlainAverage, BMUF, SlowMo, DiLoCo)}
)

__all__ = ["BMUF", "OUTER", "DiLoCo", "OuterOptimizer", "PlainAverage", "SlowMo", "State"]
