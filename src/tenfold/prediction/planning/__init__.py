"""Which setting reaches a target soonest: candidates, short training runs, learning curves, and the search."""
