"""`tenfold.twin`: train for real and on a virtual cluster, and compare."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from tenfold.api.train import train
from tenfold.engines import require_no_launcher
from tenfold.engines.prepare import prepare, resolve_defaults
from tenfold.experiment import Experiment
from tenfold.experiment.call_errors import fields_by_name
from tenfold.experiment.field_types import Fields
from tenfold.launch.detect import detect_world
from tenfold.prediction.task_prediction import predict_task
from tenfold.report.results.twin_result import Twin
from tenfold.runs import Emit
from tenfold.runs.store import absolute


@fields_by_name
def twin(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    watch: Callable[[str], Emit] | None = None,
    **fields: Unpack[Fields],
) -> Twin:
    """Train for real and on a virtual cluster, and compare the weights and the times.

    `watch` is called with the name of each run before it begins, and returns the listener of its events.
    """
    require_no_launcher("a twin", detect_world())
    runs = absolute(runs)  # before the user's own code can change the current folder
    real = Experiment.given(experiment, **fields)
    if real.machine.engine == "virtual":
        real = real.replace(engine="auto", cluster=None, link=None)
    virtual = real.replace(engine="virtual", cluster="here")
    predict_task(prepare(resolve_defaults(virtual)))  # measures what it needs before either of the two runs
    done = {
        name: train(one, runs=runs, kind="twin", listen=watch(name) if watch else None)
        for name, one in {"real": real, "virtual": virtual}.items()
    }
    return Twin(done["real"], done["virtual"], difference(done["real"].weights, done["virtual"].weights))


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference between two networks' states."""
    apart = [float((one[name].double() - other[name].double()).abs().max()) for name in one if one[name].numel()]
    return max(apart, default=0.0)
