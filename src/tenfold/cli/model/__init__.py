"""Commands that use the model of a recorded run."""
