"""Plots, one file for each kind; those that the page of a comparison shows under "Scaling" are listed here."""

from typing import Any

from tenfold.common.catalog import Registry

SCALING: Registry[Any] = Registry(
    "plot",
    {
        "speedup": "tenfold.reports.plots.scaling_plots:speedup_plot",
        "efficiency": "tenfold.reports.plots.scaling_plots:efficiency_plot",
    },
)
"""Functions of the rows and their styles that return a chart, or None where there is nothing to draw."""
