"""A worker's training loop, its messages and its coordinator, independent of the engine."""
