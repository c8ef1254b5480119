"""What programs of users import, and scenarios of tests, for the server that tests fork them from."""

import gc
import importlib

gc.disable()
for name in (
    "sklearn.datasets",
    "sklearn.metrics",
    "torch._dynamo",  # which torch imports with the first optimizer
    "pytest",
    "tenfold.api.train",
    "tenfold.cli.train",
    "tenfold.workers.process",
):
    importlib.import_module(name)
importlib.import_module("brief_measurements").shorten_measurements()
gc.freeze()  # so that the forked processes do not touch, and thereby copy, what stays for good
gc.enable()
