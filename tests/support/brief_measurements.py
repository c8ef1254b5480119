"""Measurements of this machine that time few steps: no test depends on how exact they are."""

from tenfold.prediction import calibration, divided_models, probes, task_prediction


def shorten_measurements() -> None:
    """Make each measurement of this process as brief as possible, from now on."""
    probes.BURST_SECONDS = task_prediction.PROBE_SECONDS = 0.01
    probes.SIZES = {4096: 12, 65536: 12}
    probes.TURNS = probes.MOST_TURNS = 1
    calibration.TURNS = calibration.QUICK_TURNS = calibration.FEW_TURNS = 1
    divided_models.MEASURE_SECONDS = 0.0
