"""What the run store is made of: its tables, rows, labels and claims, and what is damaged or removed."""
