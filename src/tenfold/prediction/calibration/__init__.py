"""Measuring this machine with short runs of the real process engine, so that a clock can predict it."""

from tenfold.prediction.calibration.measure_machine import calibrate, ensure, machine, rounds, steps
from tenfold.prediction.calibration.probes import Listen

__all__ = ["Listen", "calibrate", "ensure", "machine", "rounds", "steps"]
