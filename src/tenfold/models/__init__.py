"""The built-in networks, a user's own, and the recomputation of activations."""
