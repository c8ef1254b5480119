"""Tenfold trains neural networks faster by dividing their data, and tells beforehand how much faster."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenfold.api import cross_validate, list_runs, open_run, resume, train
    from tenfold.cluster import Cluster
    from tenfold.crossval import CrossValidation
    from tenfold.engines.calibration import calibrate
    from tenfold.errors import TenfoldError
    from tenfold.experiment import Experiment
    from tenfold.grid import compare
    from tenfold.loop import average, shard
    from tenfold.runs import Run
    from tenfold.simulation import forecast, simulate, twin

__all__ = [
    "Cluster",
    "CrossValidation",
    "Experiment",
    "Run",
    "TenfoldError",
    "average",
    "calibrate",
    "compare",
    "cross_validate",
    "forecast",
    "list_runs",
    "open_run",
    "resume",
    "shard",
    "simulate",
    "train",
    "twin",
]

try:
    __version__ = version("tenfold")
except PackageNotFoundError:
    __version__ = "0+unknown"

_HOMES = {
    "Cluster": "tenfold.cluster",
    "CrossValidation": "tenfold.crossval",
    "Experiment": "tenfold.experiment",
    "Run": "tenfold.runs",
    "TenfoldError": "tenfold.errors",
    "average": "tenfold.loop",
    "calibrate": "tenfold.engines.calibration",
    "compare": "tenfold.grid",
    "cross_validate": "tenfold.api",
    "forecast": "tenfold.simulation",
    "list_runs": "tenfold.api",
    "open_run": "tenfold.api",
    "resume": "tenfold.api",
    "shard": "tenfold.loop",
    "simulate": "tenfold.simulation",
    "train": "tenfold.api",
    "twin": "tenfold.simulation",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line starts without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tenfold' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
