"""The names that an experiment may use, by family."""

MODELS = ("lenet5", "cnn", "mlp")
SOURCES = ("digits", "mnist", "fashion-mnist")
LOSSES = ("cross-entropy", "mse", "l1", "bce")
METRICS = ("accuracy", "mae", "rmse")
