"""How long an experiment takes: calibration of this machine, and predictions for any hardware."""
