"""Tenfold trains neural networks faster by dividing their data, and tells beforehand how much faster."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenfold.api import list_runs, open_run, resume, train
    from tenfold.errors import TenfoldError
    from tenfold.experiment import Experiment
    from tenfold.grid import compare
    from tenfold.runs import Run

__all__ = ["Experiment", "Run", "TenfoldError", "compare", "list_runs", "open_run", "resume", "train"]

try:
    __version__ = version("tenfold")
except PackageNotFoundError:
    __version__ = "0+unknown"

_HOMES = {
    "Experiment": "tenfold.experiment",
    "Run": "tenfold.runs",
    "TenfoldError": "tenfold.errors",
    "compare": "tenfold.grid",
    "list_runs": "tenfold.api",
    "open_run": "tenfold.api",
    "resume": "tenfold.api",
    "train": "tenfold.api",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line starts without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tenfold' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
