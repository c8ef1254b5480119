"""Optimizers: torch's own by name, Muon, and those that the user passes."""
