"""Ranks that a launcher started, on one host or many."""
