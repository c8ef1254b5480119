"""What this machine has, and where workers run on it: cores, pinning, threads, devices, facts, a doctor."""
