"""The parts of the run store: its tables, rows, labels and claims, and damaged or removed runs."""
