"""Who averages with whom, one file per strategy."""
