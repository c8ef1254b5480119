"""What unset fields stand for, where it depends on other fields. docs/design/0006 has the measurements."""

from typing import TYPE_CHECKING, Any

from tenfold.common.catalog import STRATEGIES
from tenfold.experiment.training import USUAL_BATCH

if TYPE_CHECKING:
    from tenfold.experiment.experiment import Experiment

SMALLEST_BATCH, LARGEST_GLOBAL_BATCH = 16, 512


def with_defaults(experiment: "Experiment") -> "Experiment":
    """Return the experiment with a value in the place of every "auto" and unset field that other fields decide.

    It depends on the number of workers, so that has to be final.
    """
    training, division = experiment.training, experiment.division
    changes: dict[str, Any] = {}
    if training.batch_size is None:
        changes["batch_size"] = usual_batch_size(division.workers)
    if training.schedule is None:
        changes["schedule"] = training.rate_schedule
    if division.average == "auto":
        changes["average"] = "gradients" if _averages_gradients(experiment) else "weights"
    if division.optimizer_state == "auto":
        by_weights = changes.get("average", division.average) == "weights" and division.workers > 1
        plain = training.optimizer == "muon" and by_weights and division.outer == "none"
        averages = plain and not STRATEGIES[division.strategy].asynchronous
        changes["optimizer_state"] = "average" if averages else "local"
    return experiment.replace(**changes) if changes else experiment


def usual_batch_size(workers: int) -> int:
    """Return the samples per step of each replica: together at most 512, but at least 16 and at most 64 each."""
    return max(SMALLEST_BATCH, min(USUAL_BATCH, LARGEST_GLOBAL_BATCH // workers))


def _averages_gradients(experiment: "Experiment") -> bool:
    training, division = experiment.training, experiment.division
    silent = division.sync_every is None and division.local_after == 0 and division.optimizer_state == "auto"
    plain = division.outer == "none" and division.compression == "none" and not training.needs_closure
    return division.workers > 1 and silent and plain and STRATEGIES[division.strategy].always_exact
