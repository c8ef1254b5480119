"""Verbs that prepare a machine: experiment files, data, checks and measurements."""
