"""Measuring this machine with short runs of the real process engine, so that a clock can predict it."""

from tenfold.prediction.calibration.measure_machine import (
    complete_profile,
    measure_all,
    measure_rounds,
    measure_steps,
    profile_facts,
)
from tenfold.prediction.calibration.probes import ReportProgress

__all__ = ["ReportProgress", "complete_profile", "measure_all", "measure_rounds", "measure_steps", "profile_facts"]
