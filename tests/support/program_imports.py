"""What programs of users import, for the server that tests fork such programs from."""

import sklearn.datasets
import sklearn.metrics
import torch._dynamo  # which torch imports with the first optimizer

import tenfold.api.train
import tenfold.workers.pool.worker_process
