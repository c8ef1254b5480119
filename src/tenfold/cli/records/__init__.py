"""Verbs about what was recorded: show, export, label or remove it, and predict with it."""
