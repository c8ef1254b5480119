"""Ranks that a launcher has started (torchrun, mpirun, srun), on one host or many."""
