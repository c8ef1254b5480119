"""The life of a worker, its messages and its coordinator, whatever hosts it."""
