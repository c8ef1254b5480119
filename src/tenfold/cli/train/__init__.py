"""Commands that train: an experiment, several side by side, the folds of a cross-validation, a paper's experiments."""
