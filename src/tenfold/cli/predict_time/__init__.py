"""Commands that predict training times, or measure the machine for that."""
