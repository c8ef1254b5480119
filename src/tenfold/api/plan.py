"""`tenfold.plan`: find the setting that reaches a target first."""

from pathlib import Path
from time import perf_counter
from typing import Any

from tenfold.cluster import Cluster
from tenfold.cluster.cluster import HERE, cluster_of
from tenfold.engines import require_no_launcher, validate
from tenfold.engines.prepare import load_task
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.executors.submitting import LOCAL, Asked, Submitter, executor_named
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import fields_by_name
from tenfold.experiment.section_fields import Precision
from tenfold.machine import cores, devices
from tenfold.machine.metadata import has_bf16, instruction_sets
from tenfold.prediction.calibration import measure_all
from tenfold.prediction.ledger import Ledger
from tenfold.prediction.planning import planner
from tenfold.prediction.planning.candidates import Candidate, candidates_here, candidates_on, compare_bf16
from tenfold.prediction.planning.evidence import find_setting
from tenfold.prediction.planning.learning import validation_share
from tenfold.prediction.probes import ReportProgress
from tenfold.prediction.profile import Profile
from tenfold.prediction.virtual_engine import describe_division
from tenfold.reports.display import reporter
from tenfold.reports.formatting import duration
from tenfold.reports.plan import Plan
from tenfold.runs.store import absolute
from tenfold.training.measures import check_target
from tenfold.workers.task import Resolved, Task, resolve_defaults

BF16_WORTH = 0.9
"""The part of its time in fp32 that a step in bf16 may take at most to be worth a try."""


@fields_by_name
def plan(
    experiment: Experiment | None = None,
    *,
    target: float | None = None,
    cluster: Cluster | dict[str, Any] | str | Path | None = None,
    max_workers: int | None = None,
    budget: float = planner.BUDGET,
    on: Asked | Submitter = LOCAL,
    runs: str | Path | None = None,
    progress: bool | ReportProgress | None = None,
    **fields: Any,
) -> Plan:
    """Find the workers, threads, batch size, averaging and precision that reach a target first.

    The plan is for this machine or for a cluster; for a cluster, the precision is not changed.

    `target` is a value of the first metric, as in training. `budget` is the time in seconds for measuring steps and
    for all training runs. Step times and short training runs predict the duration of each setting; trial runs with
    several seeds, measured on a validation part, show how many epochs are needed.

    `plan.best` is the experiment to run; it stops when the validation part reaches the target. If the experiment has no
    validation part, the plan holds one out of the training part. `plan.table` lists every setting. With `on`, as in
    `compare`, the plan also states the delay of a run on that executor; Slurm's jobs are stored beside the run store
    `runs`. `progress` is as in `forecast`.
    """
    require_no_launcher("a plan")
    base = Experiment.given(experiment, **fields)
    target = base.training.target if target is None else target
    if target is None:
        raise ExperimentError("no target: planning needs one, such as target=0.99 or --target 0.99")
    if budget <= 0:
        raise ExperimentError(f"budget = {budget:g}: should be more than 0 seconds, such as 90")
    if max_workers is not None and max_workers < 1:
        raise ExperimentError(f"max_workers = {max_workers}: should be at least 1")
    submitter = executor_named(on)
    if base.parallel.shards == "fractions":
        raise ExperimentError(
            'parallel.shards = "fractions" fixes the number of workers, but planning chooses it; use "iid"'
        )
    base = base.replace(target=None, engine="auto", cluster=None, link=None)
    validate(base.replace(workers=1), None)
    hardware = HERE if cluster is None else cluster_of(base.replace(workers=1, cluster=cluster))
    base, task, loading = _with_validation(base)
    splits = task.splits
    check_target(base.training, splits.classes, target)
    delay = "" if submitter is None else _delay_on(submitter, absolute(runs))
    if hardware is not HERE:
        candidates = candidates_on(hardware, base, most_workers=max_workers)
    else:
        gpu = devices.resolve("auto")
        precisions, remark = _other_precisions(task, reporter(progress))
        candidates = candidates_here(
            base,
            most_workers=max_workers,
            gpu=None if gpu.type == "cpu" else str(gpu),
            precisions=precisions,
            gpu_precisions=("bf16",) if base.training.precision == "fp32" and devices.supports_bf16(gpu) else (),
        )
    own = Candidate(resolve_defaults(base.replace(device="cpu") if hardware is not HERE else base))
    results = planner.search(
        candidates,
        splits,
        target,
        cluster=hardware,
        given=own,
        budget=budget,
        loading=loading,
        report=reporter(progress),
    )
    remarks = [describe_division(task, max(2, cores.budget())), remark] if hardware is HERE else []
    result = Plan(
        results, planner.best_of(results, target), find_setting(results.assessments, own), target, [*remarks, delay]
    )
    if hardware is HERE and result.chosen.interval is not None:
        Ledger.note_plan(result.best, len(splits.train), result.predicted_seconds, result.interval)
    return result


def _other_precisions(task: Task, report: ReportProgress) -> tuple[list[Precision], str]:
    """Return the other precisions worth trying on this CPU, and a sentence that explains the choice."""
    if task.experiment.training.precision != "fp32" or not has_bf16(instruction_sets()):
        return [], ""
    try:
        ratio = compare_bf16(task, report)
    except TenfoldError as error:
        return [], f"bf16 was not tried: {error}"
    if ratio > BF16_WORTH:
        return [], f"bf16 was not tried: a step takes {ratio:.2f} times as long as in fp32 (one thread)"
    return ["bf16"], f"bf16 was tried: a step takes {ratio:.2f} of its time in fp32 (one thread)"


def _delay_on(submitter: Submitter, runs: Path) -> str:
    """Return a sentence on how long a run takes on an executor beyond its training."""
    first, later = submitter.measure_delays(runs)
    return (
        f"on {submitter.name} a first run is back {duration(first)} later than it would be here, and each further one "
        f"{duration(later)} later (measured with mlp on digits)"
    )


def _with_validation(base: Experiment) -> tuple[Experiment, Task, float]:
    """Return the experiment and its task with a validation part, and the seconds spent loading the data.

    Without a validation part, some training samples are held out.
    """
    began = perf_counter()
    task = load_task(Resolved.of(base.replace(workers=1, device="cpu")), 1)
    if task.splits.validation is None:
        base = base.replace(validation_fraction=validation_share(len(task.splits.train)))
        began = perf_counter()
        task = load_task(Resolved.of(base.replace(workers=1, device="cpu")), 1)
    return base, task, perf_counter() - began


def calibrate(
    experiment: Experiment | None = None,
    profile: Profile | None = None,
    *,
    quick: bool = False,
    progress: bool | ReportProgress | None = None,
) -> Profile:
    """Measure this machine and the steps of an experiment (default: the built-in networks), in about a minute.

    Other measurements in a given profile of the same machine are kept. Nothing is saved; call `Profile.save`. `quick`
    takes seconds, but is less accurate. `progress` is as in `forecast`.
    """
    return measure_all(experiment and experiment.with_trusted_imports(), profile, reporter(progress), quick=quick)
