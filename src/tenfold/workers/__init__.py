"""The life of a worker, its messages and its supervisor, whatever hosts it."""
