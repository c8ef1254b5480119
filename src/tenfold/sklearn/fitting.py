"""Training on data that are in memory already, recorded or not, and predicting with the trained network."""

import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tenfold.api.train import engine_for, finished_run, warn
from tenfold.common.catalog import MODELS
from tenfold.data import Splits
from tenfold.engines import RecordedRun, require_no_launcher
from tenfold.engines.prepare import check_new_run, prepare, resolve_defaults
from tenfold.engines.processes import Processes
from tenfold.engines.recording import train_recorded
from tenfold.engines.run_facts import describe
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.launch.detect import detect_world
from tenfold.machine import devices
from tenfold.runs import Event, Run, Stopwatch, Store
from tenfold.runs.callbacks import Callbacks, as_list
from tenfold.runs.history import History
from tenfold.workers.pool.fork_server import start_server_for
from tenfold.workers.task import make_network

KIND = "fit"
PREDICTED_AT_ONCE = 2048


class Fitted(NamedTuple):
    """The result of training."""

    network: nn.Module
    result: dict[str, Any]
    history: list[dict[str, float]]
    run: Run | None


def fit(experiment: Experiment, splits: Splits, *, runs: str | Path | None, callbacks: Any) -> Fitted:
    """Train on these parts, with real workers; it is recorded only if a folder of runs is given."""
    require_no_launcher("an estimator of scikit-learn", detect_world())
    if experiment.machine.engine == "virtual":
        raise ExperimentError("an estimator trains with real workers; tenfold.simulate trains on a virtual cluster")
    stopwatch, history = Stopwatch(), History()
    heard = Callbacks(warn, as_list(callbacks))

    def listen(event: Event) -> None:
        history(event)
        heard(event)

    experiment = resolve_defaults(experiment)
    engine = engine_for(experiment, stopwatch, listen)
    if isinstance(engine, Processes):
        start_server_for(experiment.division.workers)
    task = prepare(experiment, splits=splits.to(devices.resolve(experiment.machine.device)))
    run = None
    check_new_run(task)
    if runs is None:
        outcome = engine.run(task, stopwatch, listen)
    else:
        store = Store(runs)
        number = store.create(experiment, kind=KIND, facts=describe(task))
        outcome = train_recorded(engine.run, task, store, number, stopwatch, listen)
        run = finished_run(RecordedRun.finished(store, number, outcome, experiment))
    network = make_network(task).cpu()
    network.load_state_dict(outcome.weights)
    return Fitted(network.eval(), outcome.result, history.rows(), run)


def outputs_of(network: nn.Module, x: Tensor, *, exact: bool) -> Tensor:
    """Return a network's outputs as float64, a batch at a time.

    `exact` computes in float64, so that the outputs for a sample do not depend on the batch it comes in.
    """
    if exact:
        network, x = copy.deepcopy(network).double(), x.double()
    with torch.inference_mode():
        return torch.cat([network(batch) for batch in torch.split(x, PREDICTED_AT_ONCE)]).double()


def is_built_in(model: object) -> bool:
    """Return whether a model is one of the built-in networks, which compute in any precision."""
    return model is None or (isinstance(model, str) and model in MODELS)
