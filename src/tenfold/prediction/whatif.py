"""The time of a recorded run if one thing had been different: its own steps, replayed by the clock."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.hardware import LINKS, Floats, Hardware, RoundCost, StepTime
from tenfold.cluster.time_prediction import bytes_sent, predict_time
from tenfold.cluster.workload import Workload
from tenfold.errors import ExperimentError, MachineError, StoreError
from tenfold.machine.metadata import MOST_LOAD_PER_CORE
from tenfold.mixing import STRATEGIES, Round
from tenfold.prediction.probes import StepSpans, round_seconds
from tenfold.prediction.profile import Profile
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL
from tenfold.workers.task import Mixing

STEP_KINDS = ("data", "copy", "compute")
"""The kinds of time that make up a step without its round."""
FEWEST_STEPS = 5
USUAL_LINKS = ("infiniband", "10gbe", "1gbe")
COMPARED_STRATEGIES = ("allreduce", "butterfly", "ring")
RARE_ROUNDS = 16
"""Steps between rounds, where they are rare."""


@dataclass(frozen=True)
class Change:
    """One thing that could have been different."""

    what: str
    seconds: float
    """The training time that the run would have taken."""
    basis: str
    """The basis of the number."""


@dataclass(frozen=True)
class WhatIf:
    """How long a run took, how well the clock replays it, and how long it would have taken with one thing changed."""

    run: Run
    steps: int
    """How many steps of each worker were recorded one by one; these are replayed."""
    replayed: float
    """Seconds of the unchanged replay; those of all changes are scaled so that this one would be the measured time."""
    changes: Sequence[Change]

    @property
    def seconds(self) -> float:
        return float(self.run.seconds or 0.0)

    def record(self) -> dict[str, Any]:
        changes = [
            {
                "change": change.what,
                "seconds": change.seconds,
                "factor": change.seconds / self.seconds,
                "basis": change.basis,
            }
            for change in self.changes
        ]
        replay = {"steps": self.steps, "replayed": self.replayed}
        return {"run": self.run.id, "seconds": self.seconds, **replay, "changes": changes}


def replay_changed(run: Run, links: Sequence[str] = USUAL_LINKS) -> WhatIf:
    """Replay a measured run as it was, and with one thing changed at a time."""
    workload, hardware, steps = _inputs(run)
    replayed = predict_time(workload, hardware).seconds
    scale = float(run.seconds or 0.0) / replayed
    changes = [
        Change(what, scale * predict_time(changed, changed_hardware).seconds, basis)
        for what, changed, changed_hardware, basis in _changed(workload, hardware, links, _state_bytes(run, workload))
    ]
    return WhatIf(run, steps, replayed, [*changes, *_measured_precisions(run)])


def _inputs(run: Run) -> tuple[Workload, Hardware, int]:
    """Return the clock's inputs as the run recorded them, and the number of steps that were recorded one by one."""
    parallel, result = run.experiment.parallel, run.result
    strategy, n = Mixing.of(parallel).strategy, parallel.workers
    if run.clock != "measured" or not run.seconds or run.kind == CROSSVAL:
        raise ExperimentError(f"run {run.id} has no measured training to replay; choose a finished run of `train`")
    if strategy.asynchronous:
        raise ExperimentError(f'run {run.id} has no rounds to replay: its strategy is "{parallel.strategy}"')
    if parallel.divide != "data" or run.experiment.training.optimizer_traits.steps_with_all_workers:
        raise ExperimentError(
            f"run {run.id} has no rounds to replay: its workers divided the "
            f"{'model' if parallel.divide != 'data' else 'steps of the optimizer'}, not the data; "
            "`tenfold simulate` predicts it with other settings"
        )
    if not {"steps", "epochs"} <= result.keys() or "parameters" not in run.metadata:
        raise StoreError(f"run {run.id} cannot be replayed: {run.problem or 'its record is incomplete'}")
    spans = [span for span in run.timeline if span.count == 1]
    workers = [StepSpans([span for span in spans if span.worker == worker]) for worker in range(n)]
    count = min(len(worker.own) for worker in workers)
    if count < FEWEST_STEPS:
        raise ExperimentError(f"run {run.id} recorded the times of only {count} steps per worker, too few to replay")
    own, arrived, left = (
        np.column_stack([getattr(worker, name)[1:count] for worker in workers]) for name in ("own", "arrived", "left")
    )
    mean = sum(run.times.get(kind, 0.0) for kind in STEP_KINDS) / result["steps"]
    epochs = max(1, result["epochs"])
    each = 8 if run.experiment.training.precision == "fp64" else 4  # bytes, in a record without those of all weights
    workload = Workload(
        workers=n,
        steps_per_epoch=max(1, result["steps"] // epochs),
        epochs=epochs,
        strategy=strategy,
        nbytes=int(run.metadata.get("weight_bytes") or each * run.metadata["parameters"]),
        sync_every=parallel.steps_between_rounds,
        local_after=parallel.local_after,
        average="gradients" if parallel.average == "gradients" else "weights",
    )
    cost = _round_cost(arrived, left, workload)
    step_time = StepTime(mean=mean, trace=np.maximum(own, 1e-9))
    return workload, Hardware(step_time=step_time, round_cost=cost, calibrated=True), count - 1


def _state_bytes(run: Run, workload: Workload) -> tuple[int, ...]:
    """Return the bytes of the optimizer's state that a worker sent in a round beside the weights, as it recorded."""
    weights = float(bytes_sent(workload).max())
    if not run.experiment.parallel.averages_state or not weights:
        return ()
    return (max(0, round(workload.nbytes * (run.result["bytes_moved"] / weights - 1))),)


def _round_cost(arrived: Floats, left: Floats, workload: Workload) -> RoundCost:
    """Return the seconds of a round as the run recorded them, the same for every round."""
    in_round = (left > arrived).any(axis=1)
    if workload.workers == 1 or not in_round.any():
        return _free
    seconds = round_seconds(arrived[in_round], left[in_round], workload.strategy)
    return lambda round_, _nbytes: 0.0 if round_.is_idle else seconds


def _free(_round: Round, _nbytes: int) -> float:
    return 0.0


def _changed(
    workload: Workload, hardware: Hardware, links: Sequence[str], state_bytes: tuple[int, ...]
) -> Iterator[tuple[str, Workload, Hardware, str]]:
    """Yield each change with the inputs of the clock and its basis, beside the recorded steps."""
    n = workload.workers
    assumed = "a round costs as much as the recorded ones" if n > 1 else "rounds cost nothing"
    if n > 1:
        yield "free communication", workload, replace(hardware, round_cost=_free), "rounds cost nothing"
        steady = replace(hardware, step_time=StepTime(mean=hardware.step_times(1)[0].mean))
        yield "no stragglers", workload, steady, "every step takes the mean of all"
        if workload.average == "gradients" or workload.sync_every < RARE_ROUNDS:
            rare = replace(workload, average="weights", sync_every=RARE_ROUNDS)
            yield f"weights averaged every {RARE_ROUNDS} steps", rare, hardware, assumed
        yield from _other_strategies(workload, hardware)
        messages = replace(workload, state_bytes=state_bytes)
        for link in links:
            linked = replace(hardware, round_cost=Cluster.of(n, link).round_cost(n))
            yield f"one worker per node, {link}", messages, linked, f"latency and bandwidth of {link}"
    doubled = replace(workload, workers=2 * n, steps_per_epoch=-(-workload.steps_per_epoch // 2))
    yield "twice the workers on twice the cores", doubled, hardware, assumed


def _other_strategies(workload: Workload, hardware: Hardware) -> Iterator[tuple[str, Workload, Hardware, str]]:
    """Yield other strategies, whose rounds cost as much more or less as in this machine's profile, if there is one."""
    n = workload.workers
    with suppress(MachineError):
        profile = Profile.load()
        own = float(profile.round_cost()(workload.strategy.round(0, n), workload.nbytes))
        busy = ", but was measured while other programs were running"
        about = busy if profile.costs.rounds_load > MOST_LOAD_PER_CORE else ""
        factor = float(hardware.round_cost(workload.strategy.round(0, n), workload.nbytes)) / own
        for name in COMPARED_STRATEGIES if n > 2 else ():
            if name != workload.strategy.name:
                changed = replace(workload, strategy=STRATEGIES[name](), average="weights")
                scaled = replace(hardware, round_cost=profile.round_cost(factor=factor))
                yield (
                    f"strategy {name}",
                    changed,
                    scaled,
                    f"rounds differ as in this machine's profile{about}",
                )


def _measured_precisions(run: Run) -> Iterator[Change]:
    """Yield the times of runs that differ in nothing but the precision: that cannot be replayed, only measured."""
    own = run.experiment.training.precision
    for record in reversed(run.store.records()):
        if record["problems"] or record["status"] != "finished" or record["kind"] == CROSSVAL:
            continue
        training = record["experiment"].get("training", {})
        if training.get("precision", "fp32") == own:
            continue
        other = run.other(record["id"])
        same = not other.problem and other.experiment.replace(precision=own) == run.experiment
        if same and other.clock == "measured" and other.seconds:
            yield Change(f"precision {training['precision']}", other.seconds, f"measured in run {other.id}")
            return


def check_links(links: Sequence[str]) -> None:
    for link in links:
        if link not in LINKS:
            raise ExperimentError(f"unknown link '{link}'; links: {', '.join(LINKS)}")
