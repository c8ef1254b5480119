"""K-fold cross-validation on top of engines."""
