"""Verbs that show, label or remove what was recorded, without torch."""
