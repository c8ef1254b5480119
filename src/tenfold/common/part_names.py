"""The parts of a data set."""

PARTS = ("train", "validation", "test")
