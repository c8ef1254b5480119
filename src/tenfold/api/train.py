"""`tenfold.train`: train a model and record the run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from tenfold.api.open_run import load_model
from tenfold.common.user_code import warn_user
from tenfold.data import FetchProgress
from tenfold.engines import Engine, RecordedRun, choose, validate
from tenfold.experiment import Experiment
from tenfold.experiment.call_errors import fields_by_name
from tenfold.experiment.field_types import Fields
from tenfold.launch.detect import detect_world
from tenfold.report.live.follow import follow
from tenfold.report.live.run_progress import RunProgress
from tenfold.report.loggers.make_loggers import make_loggers
from tenfold.runs import Emit, Event, Note, Run, Stopwatch, Warned, WorkerDropped
from tenfold.runs.callbacks import Callbacks, as_list
from tenfold.runs.store import absolute


@fields_by_name
def train(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    fetching: FetchProgress | None = None,
    kind: str = "train",
    **fields: Unpack[Fields],
) -> Run:
    """Train a model and record the run.

    The experiment is given as a value, or by its fields: `train(model="lenet5", data="mnist", epochs=3, lr=0.05)`;
    fields next to an experiment change it. `runs` is the folder of the run store ($TENFOLD_RUNS, else "runs").
    `callbacks` are objects with methods such as `on_epoch_end(event)` (see `tenfold.Callback`), which may stop the
    training by raising `tenfold.StopTraining`; `log`, "tensorboard" or "mlflow" or both, also writes the run's numbers
    there. `listen` is called with every event, `fetching` with the progress of a download. `progress` shows the epochs;
    by default on a terminal and in a notebook, but not in logs. `kind` is the kind of run that the store records.

    Under torchrun, mpirun or srun all ranks call it, and each is a worker. Rank 0 records; the others get the same
    result and weights, but cannot read events from the store.
    """
    stopwatch, runs = Stopwatch(), absolute(runs)  # before the user's own code can change the current folder
    experiment = Experiment.given(experiment, **fields)
    with follow(lambda: RunProgress(experiment), progress, listen, warn) as shown:
        listener = shown
        if callbacks != () or log is not None or listen is not None:  # each may ask to stop
            listener = Callbacks(shown, [*as_list(callbacks), *make_loggers(log, runs)])
        engine = engine_for(experiment, stopwatch, listener)
        recorded = engine.train(
            experiment, runs=runs, kind=kind, stopwatch=stopwatch, listen=listener, fetching=fetching
        )
    return finished_run(recorded)


def engine_for(experiment: Experiment, stopwatch: Stopwatch, listen: Emit) -> Engine:
    """Return the engine that trains an experiment here; raise ExperimentError if none can.

    What has to be measured to predict the times of a virtual cluster is reported to `listen`.
    """
    world = detect_world()
    validate(experiment, world)
    if experiment.machine.engine != "virtual":
        return choose(experiment, world)
    from tenfold.prediction.virtual_engine import Virtual

    return Virtual(lambda text: listen(Note(at=stopwatch.now(), text=text)))


def finished_run(recorded: RecordedRun) -> Run:
    """Return a run that has just ended, with its weights and its result."""
    return Run(
        recorded.store,
        recorded.record,
        build=load_model,
        experiment=recorded.experiment,
        weights=recorded.outcome.weights,
        result=recorded.outcome.result,
    )


def warn(event: Event) -> None:
    """Show warning events as Python warnings, where no other listener is given."""
    if isinstance(event, Warned | WorkerDropped):
        concerns_worker = isinstance(event, Warned) and event.concerns_worker
        warn_user(f"worker {event.worker}: {event.text}" if concerns_worker else event.text)
