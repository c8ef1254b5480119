"""Plots as plain values: charts of runs, and of settings side by side."""
