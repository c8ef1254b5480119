"""Verbs that train or simulate."""
