"""Runs as tables, for a terminal and for pages."""
