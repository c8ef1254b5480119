"""Showing runs, predictions and plans: tables, plots, pages and the live display.

Lines that explain a table are made in one of two places. Tables of settings, which have several forms, return them as
`notes` (`results/comparison.py`); tables that are only printed have them as the caption (`tables/`).
"""
