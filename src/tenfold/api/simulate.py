"""`tenfold.simulate`: train on a virtual cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from tenfold.api.train import train
from tenfold.data import FetchProgress
from tenfold.experiment import Experiment
from tenfold.experiment.field_types import Fields
from tenfold.experiment.positional import fields_by_name
from tenfold.runs import Emit, Run

VIRTUAL: Literal["virtual"] = "virtual"


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
    `link`.
    """
    experiment = on_cluster(experiment, **fields)
    return train(
        experiment,
        runs=runs,
        callbacks=callbacks,
        log=log,
        listen=listen,
        progress=progress,
        fetching=fetching,
        kind="simulate",
    )


def on_cluster(experiment: Experiment | None, **fields: Any) -> Experiment:
    """Return the experiment as one for a virtual cluster."""
    return Experiment.given(experiment, engine=VIRTUAL, **fields)
