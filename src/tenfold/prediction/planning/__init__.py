"""Find the setting that reaches a target first: candidates, short training runs, learning curves, and the search."""
