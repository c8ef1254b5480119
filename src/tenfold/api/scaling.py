"""`tenfold.scaling`: strong and weak scaling, measured on this machine's cores and predicted beyond."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from tenfold.api.compare import compare
from tenfold.api.simulate import forecast
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import fields_by_name
from tenfold.experiment.field_types import Fields
from tenfold.machine.cores import budget
from tenfold.prediction.probes import counts_up_to
from tenfold.reports.forecast import ScalingStudy
from tenfold.reports.progress import Turn
from tenfold.runs import Emit
from tenfold.runs.store import one_invocation

LINK = "10gbe"
"""The link between nodes where nothing else is said."""


@fields_by_name
@one_invocation()
def scaling(
    experiment: Experiment | None = None,
    *,
    up_to: int = 64,
    repeats: int = 1,
    runs: str | Path | None = None,
    watch: Callable[[Turn], None] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    **fields: Unpack[Fields],
) -> ScalingStudy:
    """Measure strong and weak scaling up to the cores of this machine, and predict both up to `up_to` workers.

    Strong scaling divides the same data among more workers. Weak scaling gives each worker the same number of samples,
    so that all of them together have the whole data set with `up_to` workers. What is beyond this machine is
    predicted for nodes of one worker that are joined by `link` (10gbe unless it is set). Other arguments are those of
    `compare`, and what is recorded already is not run again.
    """
    base = Experiment.given(experiment, **fields)
    if up_to < 2:
        raise ExperimentError(f"up_to = {up_to}: scaling needs at least 2 workers")
    if base.parallel.folds is not None:
        raise ExperimentError("scaling trains one model with each number of workers; leave parallel.folds unset")
    link = base.machine.link or LINK
    real = base.replace(engine="auto", link=None, cluster=None)
    here = list(counts_up_to(min(budget(), up_to)))
    beyond = [count for count in counts_up_to(up_to) if count > here[-1]]
    train = partial(compare, repeats=repeats, runs=runs, watch=watch, listen=listen, progress=progress)
    strong = train(real, workers=here)
    samples = _whole_data(strong.runs[0].metadata) // up_to
    if samples < 1:
        raise ExperimentError(f"up_to = {up_to}: there are fewer training samples than workers")

    def weakly(counts: list[int]) -> list[dict[str, Any]]:
        return [{"workers": count, "limit": count * samples} for count in counts]

    weak = train(real, together=weakly(here))
    virtual = base.replace(engine="virtual", cluster=None, link=link)
    shown = False if progress is None else progress
    far = forecast(virtual, workers=[1, *beyond], progress=shown) if beyond else None
    far_weak = [forecast(virtual.replace(**item), progress=shown) for item in weakly([1, *beyond])] if beyond else []
    return ScalingStudy(
        strong, weak, far, far_weak, samples=samples, link=link if isinstance(link, str) else "the given link"
    )


def _whole_data(recorded: dict[str, Any]) -> int:
    """Return the number of training samples of a recorded run."""
    return int(recorded["data"]["train"])
