"""This machine and the placement of workers on it: cores, pinning, threads, devices, metadata, a doctor."""
