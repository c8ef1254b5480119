"""Simulations: an experiment on hardware that is not there, and next to its real twin."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tenfold import api, grid
from tenfold.cluster import Cluster
from tenfold.data import Splits
from tenfold.engines import Task, check_unlaunched
from tenfold.engines.calibration import Listen
from tenfold.engines.foresight import foresee
from tenfold.engines.prepare import prepare
from tenfold.experiment import Data, Experiment
from tenfold.report.outlook import Outlook
from tenfold.report.twin import Twin
from tenfold.runs import Emit, Run

VIRTUAL = "virtual"


def simulate(
    experiment: Experiment | None = None,
    *,
    cluster: Cluster | dict[str, Any] | str | Path | None = None,
    runs: str | Path | None = None,
    listen: Emit | None = None,
    **fields: Any,
) -> Run:
    """Train as a virtual cluster would, and predict how long that takes there.

    The weights are those of a real run, on CPU bit for bit; `run.seconds` is predicted, with `run.interval` around it.
    `cluster` is a value, a file or "here", the processes of this machine; without one, nodes are joined by `link`.
    """
    return api.train(on_cluster(experiment, cluster, **fields), runs=runs, listen=listen, kind="simulate")


def forecast(
    experiment: Experiment | None = None,
    *,
    cluster: Cluster | dict[str, Any] | str | Path | None = None,
    listen: Listen | None = None,
    **settings: Any,
) -> Outlook:
    """Predict how long an experiment takes with every combination of the listed settings; nothing is trained."""
    check_unlaunched("a forecast")
    base, dimensions = grid.parts(on_cluster(experiment, cluster), settings)
    tasks = _prepared(grid.plan(base, dimensions, repeats=1))
    return Outlook([(task.experiment, foresee(task, listen).prediction) for task in tasks])


def twin(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    watch: Callable[[str], Emit] | None = None,
    **fields: Any,
) -> Twin:
    """Train for real and virtually, and tell how far apart the weights and the times are.

    `watch` is called with the name of each run before it begins, and returns who listens to it.
    """
    check_unlaunched("a twin")
    real = (experiment or Experiment()).replace(**fields)
    if real.machine.engine == VIRTUAL:
        real = real.replace(engine="auto", cluster=None, link=None)
    virtual = on_cluster(real, "here")
    foresee(prepare(virtual))  # what has to be measured for it comes before either runs
    done = {
        name: api.train(one, runs=runs, kind="twin", listen=watch(name) if watch else None)
        for name, one in {"real": real, VIRTUAL: virtual}.items()
    }
    return Twin(done["real"], done[VIRTUAL], difference(done["real"].weights, done[VIRTUAL].weights))


def on_cluster(experiment: Experiment | None, cluster: Any = None, **fields: Any) -> Experiment:
    """Return the experiment as one for a virtual cluster."""
    if cluster is not None:
        fields["cluster"] = cluster
    return (experiment or Experiment()).replace(engine=VIRTUAL, **fields)


def _prepared(experiments: Iterable[Experiment]) -> Iterator[Task]:
    """Yield the tasks of experiments; data that several have in common are loaded once."""
    loaded: list[tuple[Data, str, Splits]] = []
    for one in experiments:
        device = one.machine.device
        known = next((splits for data, where, splits in loaded if data == one.data and where == device), None)
        task = prepare(one, splits=known)
        if known is None:
            loaded.append((one.data, device, task.splits))
        yield task


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference between two networks' states."""
    apart = [float((one[name].double() - other[name].double()).abs().max()) for name in one if one[name].numel()]
    return max(apart, default=0.0)
