"""`tenfold.plan`: find the setting that reaches a target soonest."""

from pathlib import Path
from time import perf_counter
from typing import Any

from tenfold.cluster import Cluster
from tenfold.cluster.cluster import HERE, cluster_of
from tenfold.data import FetchProgress, Splits
from tenfold.engines import require_no_launcher, validate
from tenfold.engines.choose import resolve_defaults
from tenfold.engines.prepare import load
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import fields_by_name
from tenfold.launch.detect import detect_world
from tenfold.machine import devices
from tenfold.prediction.calibration import measure_all
from tenfold.prediction.planning import planner
from tenfold.prediction.planning.evidence import find_setting
from tenfold.prediction.planning.learning_probe import validation_share
from tenfold.prediction.planning.pricing import Candidate, candidates_here, candidates_on
from tenfold.prediction.probes import ReportProgress
from tenfold.prediction.profile import Profile
from tenfold.reports.display import reporter
from tenfold.reports.results.plan_result import Plan
from tenfold.training.measures import check_target


@fields_by_name
def plan(
    experiment: Experiment | None = None,
    *,
    target: float | None = None,
    cluster: Cluster | dict[str, Any] | str | Path | None = None,
    max_workers: int | None = None,
    budget: float = planner.BUDGET,
    progress: bool | ReportProgress | None = None,
    fetching: FetchProgress | None = None,
    **fields: Any,
) -> Plan:
    """Find the workers, threads, batch size and averaging that reach a target soonest, here or on a cluster.

    `target` is a value of the first metric, as in training. `budget` are the seconds for measuring step times and for
    all training runs. Step times and short training runs predict how long each setting takes; trial runs with several
    seeds, measured on a validation part, show how few epochs are enough.
    `plan.best` is the experiment to run, which stops when the same part reaches the target: where the experiment has no
    validation part, the plan holds one out of the training part. `plan.table` has every setting. `progress` is as in
    `forecast`.
    """
    require_no_launcher("a plan", detect_world())
    base = Experiment.given(experiment, **fields)
    target = base.training.target if target is None else target
    if target is None:
        raise ExperimentError("a plan needs a target, such as target=0.99 or --target 0.99")
    if budget <= 0:
        raise ExperimentError(f"budget = {budget:g}: a plan needs more than 0 seconds, such as 90")
    if max_workers is not None and max_workers < 1:
        raise ExperimentError(f"max_workers = {max_workers}: a plan needs at least 1 worker")
    if base.parallel.shards == "fractions":
        raise ExperimentError('parallel.shards = "fractions" sets the number of workers, which a plan chooses; use iid')
    base = base.replace(target=None, engine="auto", cluster=None, link=None)
    validate(base.replace(workers=1), None)
    hardware = HERE if cluster is None else cluster_of(base.replace(workers=1, cluster=cluster))
    base, splits, loading = _with_validation(base, fetching)
    check_target(base.training, splits.classes, target)
    if hardware is not HERE:
        candidates = candidates_on(hardware, base, most_workers=max_workers)
    else:
        gpu = devices.resolve("auto")
        candidates = candidates_here(base, most_workers=max_workers, gpu=None if gpu.type == "cpu" else str(gpu))
    own = Candidate(resolve_defaults(base.replace(device="cpu") if hardware is not HERE else base))
    found = planner.search(
        candidates,
        splits,
        target,
        cluster=hardware,
        given=own,
        budget=budget,
        loading=loading,
        report=reporter(progress),
    )
    return Plan(found, planner.best_of(found, target), find_setting(found.assessments, own), target)


def _with_validation(base: Experiment, fetching: FetchProgress | None) -> tuple[Experiment, Splits, float]:
    """Return the experiment and its data with a validation part, and the seconds for which these were loaded.

    One that has no validation part holds out some training samples.
    """
    began = perf_counter()
    splits = load(base, "cpu", fetching)
    if splits.validation is None:
        base = base.replace(validation_fraction=validation_share(len(splits.train)))
        began = perf_counter()
        splits = load(base, "cpu", fetching)
    return base, splits, perf_counter() - began


def calibrate(
    experiment: Experiment | None = None,
    profile: Profile | None = None,
    *,
    quick: bool = False,
    progress: bool | ReportProgress | None = None,
) -> Profile:
    """Measure this machine, and the steps of an experiment (default: of the built-in networks), in about a minute.

    What a given profile of the same machine knows beyond that is kept. Nothing is saved; `Profile.save` does. `quick`
    measures within seconds, but less exactly. `progress` is as in `forecast`.
    """
    return measure_all(experiment and experiment.with_trusted_imports(), profile, reporter(progress), quick=quick)
