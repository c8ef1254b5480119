"""Outer optimizers: what the mean of the replicas is used for."""

from tenfold.mixing.outer.base import OuterOptimizer, State

__all__ = ["OuterOptimizer", "State"]
