"""Many replicas on one device: the folds of a cross-validation, or the workers of one task."""
