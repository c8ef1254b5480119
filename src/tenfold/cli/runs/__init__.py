"""Commands that show, label or remove recorded runs."""
