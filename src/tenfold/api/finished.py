"""The `Run` that a caller gets when training has finished."""

import json
import warnings
from contextlib import suppress

from tenfold.api.open_run import load_model
from tenfold.common.files import write_atomically
from tenfold.engines import RecordedRun
from tenfold.report.trace import chrome_trace
from tenfold.runs import Event, Run, Warned, WorkerDropped
from tenfold.runs.remote_store import RemoteStore


def finished_run(recorded: RecordedRun) -> Run:
    """Return a run that has just ended, with its weights, and write its trace."""
    store, weights = recorded.store, recorded.outcome.weights
    run = Run(store, recorded.record, build=load_model, experiment=recorded.experiment, weights=weights)
    if isinstance(store, RemoteStore):
        return run
    with suppress(OSError):  # the trace is a view of events that are recorded anyway
        write_atomically(run.path / "trace.json", json.dumps(chrome_trace(run.events(), clock=run.clock)).encode())
    return run


def warn(event: Event) -> None:
    """Show warning events as Python warnings, where no other listener is given."""
    if isinstance(event, Warned | WorkerDropped):
        rank = event.rank if isinstance(event, Warned) else None
        warnings.warn(event.text if rank is None else f"worker {rank}: {event.text}", stacklevel=2)
