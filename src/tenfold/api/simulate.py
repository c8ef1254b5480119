"""`tenfold.simulate`: train on a virtual cluster.

That is `train` with engine = "virtual": `prediction/virtual_engine.py` trains it; `prediction/task_prediction.py`
predicts its times.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Unpack

from tenfold.api.simulation_baseline import simulation_baseline
from tenfold.api.train import train
from tenfold.data import FetchProgress
from tenfold.errors import TenfoldError
from tenfold.experiment import Experiment
from tenfold.experiment.call_errors import fields_by_name
from tenfold.experiment.field_types import Fields
from tenfold.runs import Emit, Run


@fields_by_name
def simulate(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    fetching: FetchProgress | None = None,
    **fields: Unpack[Fields],
) -> Run:
    """Train as a virtual cluster would, and predict how long that takes there.

    The weights are those of a real run, on CPU bit for bit; `run.seconds` is predicted, with `run.interval` around it.
    `cluster` is a `Cluster`, a table, a file or "here", the processes of this machine; without one, nodes are joined by
    `link`. `run.result["baseline_seconds"]` is the predicted time of one worker there, and `run.result["speedup"]` the
    speedup over it; both are left out where the run stopped early or reached a target, because nobody knows when one
    worker would have done so.
    """
    experiment = Experiment.given(experiment, **fields).replace(engine="virtual")
    run = train(
        experiment,
        runs=runs,
        callbacks=callbacks,
        log=log,
        listen=listen,
        progress=progress,
        fetching=fetching,
        kind="simulate",
    )
    _record_baseline(experiment, run)
    return run


def _record_baseline(experiment: Experiment, run: Run) -> None:
    """Store the predicted time of one worker with a run, and the speedup, where that time can be predicted.

    Errors are ignored: the run is trained and recorded by now, and complete without a speedup.
    """
    with suppress(TenfoldError):
        if (baseline := simulation_baseline(experiment, run)) is not None:
            baseline.record(run)
