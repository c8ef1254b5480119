"""Writing the numbers of a run elsewhere while it runs: TensorBoard and MLflow, as callbacks."""
