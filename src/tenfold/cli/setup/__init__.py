"""Commands that prepare: experiment files, data, and checks of the machine."""
