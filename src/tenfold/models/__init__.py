"""Built-in and user networks, and activation checkpointing."""
