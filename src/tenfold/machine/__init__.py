"""This machine, and where workers run on it: cores, pinning, threads, devices, metadata, a doctor."""
