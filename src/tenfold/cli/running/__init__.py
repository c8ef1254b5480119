"""Verbs that train, simulate or plan."""
