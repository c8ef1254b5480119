"""Tenfold trains neural networks faster by dividing their data, and predicts the speedup."""

import sys
from typing import TYPE_CHECKING

if sys.platform == "win32":
    from tenfold.errors import MachineError

    raise MachineError(
        "Tenfold runs on Linux and macOS; on Windows it runs in WSL: `wsl --install`, "
        "then install and use it in the terminal that opens"
    )

from tenfold import backend as backend  # it registers itself with torch.distributed
from tenfold.common.imports import lazy_attributes
from tenfold.machine import cores as _cores  # it notices from here on that this process is forked

if TYPE_CHECKING:
    from tenfold import sklearn as sklearn
    from tenfold.api.compare import compare
    from tenfold.api.plan import calibrate, plan
    from tenfold.api.simulate import forecast, scaling, simulate, twin, whatif
    from tenfold.api.sweep import sweep
    from tenfold.api.train import cross_validate, resume, train
    from tenfold.cluster import Cluster
    from tenfold.common import __version__ as __version__
    from tenfold.crossval import CrossValidation
    from tenfold.errors import StopTraining, TenfoldError
    from tenfold.experiment import Experiment
    from tenfold.loop import average, shard
    from tenfold.reports.pages.run_pages import report
    from tenfold.reports.sweep import Sweep
    from tenfold.runs import Run
    from tenfold.runs.callbacks import Callback
    from tenfold.runs.open_run import list_runs, open_run

__all__ = [
    "Callback",
    "Cluster",
    "CrossValidation",
    "Experiment",
    "Run",
    "StopTraining",
    "Sweep",
    "TenfoldError",
    "average",
    "calibrate",
    "compare",
    "cross_validate",
    "forecast",
    "list_runs",
    "open_run",
    "plan",
    "report",
    "resume",
    "scaling",
    "shard",
    "simulate",
    "sweep",
    "train",
    "twin",
    "whatif",
]

_HOMES = {
    "__version__": "tenfold.common",
    "Callback": "tenfold.runs.callbacks",
    "Cluster": "tenfold.cluster",
    "CrossValidation": "tenfold.crossval",
    "Experiment": "tenfold.experiment",
    "Run": "tenfold.runs",
    "StopTraining": "tenfold.errors",
    "Sweep": "tenfold.reports.sweep",
    "TenfoldError": "tenfold.errors",
    "average": "tenfold.loop",
    "calibrate": "tenfold.api.plan",
    "compare": "tenfold.api.compare",
    "cross_validate": "tenfold.api.train",
    "forecast": "tenfold.api.simulate",
    "list_runs": "tenfold.runs.open_run",
    "open_run": "tenfold.runs.open_run",
    "plan": "tenfold.api.plan",
    "report": "tenfold.reports.pages.run_pages",
    "resume": "tenfold.api.train",
    "scaling": "tenfold.api.simulate",
    "shard": "tenfold.loop",
    "simulate": "tenfold.api.simulate",
    "sweep": "tenfold.api.sweep",
    "sklearn": "tenfold.sklearn",  # not in __all__, where it would hide the library of this name
    "train": "tenfold.api.train",
    "twin": "tenfold.api.simulate",
    "whatif": "tenfold.api.simulate",
}


_cores.set_wait_policy()  # where torch is not imported yet

if not TYPE_CHECKING:  # the command line should not wait for torch
    __getattr__ = lazy_attributes(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
