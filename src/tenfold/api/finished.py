"""A run that has just finished, as its caller gets it."""

import json
import warnings
from contextlib import suppress
from typing import Any

from tenfold.api.open_run import load_model
from tenfold.common.files import write_atomically
from tenfold.engines import Outcome
from tenfold.experiment import Experiment
from tenfold.report.trace import chrome_trace
from tenfold.runs import Event, Run, Store, Warned, WorkerDropped
from tenfold.runs.elsewhere import Elsewhere


def opened(store: Store, number: int, experiment: Experiment, outcome: Outcome) -> Run:
    """Return the run that has just finished, as it is even where the store could not take it all."""
    return shown(store, store.find(number) | {"status": "finished", "result": outcome.result}, outcome, experiment)


def shown(store: Store, record: dict[str, Any], outcome: Outcome, experiment: Experiment) -> Run:
    """Return a finished run with its weights at hand, and write its trace."""
    run = Run(store, record, build=load_model, experiment=experiment, weights=outcome.weights)
    if isinstance(store, Elsewhere):
        return run
    with suppress(OSError):  # the trace is a view of events that are recorded anyway
        write_atomically(run.path / "trace.json", json.dumps(chrome_trace(run.events(), clock=run.clock)).encode())
    return run


def warn(event: Event) -> None:
    """Pass warnings on to whoever listens to nothing else."""
    if isinstance(event, Warned | WorkerDropped):
        names = event.worker and isinstance(event, Warned)
        warnings.warn(f"worker {event.worker}: {event.text}" if names else event.text, stacklevel=2)
