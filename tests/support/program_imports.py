"""What programs of users import, for the server that tests fork such programs from."""

import importlib

for name in (
    "sklearn.datasets",
    "sklearn.metrics",
    "torch._dynamo",  # which torch imports with the first optimizer
    "tenfold.api.train",
    "tenfold.workers.pool.worker_process",
):
    importlib.import_module(name)
