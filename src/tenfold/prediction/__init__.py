"""Predict the time of an experiment: calibration of this machine, and predictions for any hardware."""

SCRIPT_PLAN = "plan.json"
"""The file that tells a rank of a simulated script what to do."""
