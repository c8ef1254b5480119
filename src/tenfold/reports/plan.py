"""The plan of an experiment: the candidate settings, and the predicted time of each to the target."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.experiment import Experiment
from tenfold.prediction.planning.candidates import Candidate
from tenfold.prediction.planning.evidence import UNTRIED, Assessment, Search, describe_candidate
from tenfold.reports import summary
from tenfold.reports.comparison import ResultTable
from tenfold.reports.comparison_rows import DOUBTS, Row, Spread, load_doubts
from tenfold.reports.formatting import NOTHING, duration, interval, metric_value, plural
from tenfold.reports.tables import Column


@dataclass(frozen=True)
class Repayment:
    """The number of runs after which a plan has saved the seconds that it cost."""

    seconds_saved: float
    """Seconds saved per run, compared with the original experiment."""
    runs: int | None
    """None if the plan saves nothing."""


class Plan(ResultTable):
    """The setting predicted to reach a target soonest, and the table of all candidates; all times are predicted."""

    def __init__(
        self,
        search: Search,
        chosen: Assessment,
        given: Assessment | None,
        target: float,
        remarks: Sequence[str] = (),
    ) -> None:
        self.search = search
        self.chosen = chosen
        self.given = given
        """The setting of the original experiment; None if it was not among the candidates."""
        self.target = target
        self.remarks = remarks
        """Sentences on other options, such as a divided model or another precision; may be empty."""
        self._tried = [assessment for assessment in search.assessments if assessment.probes]
        self.rows = [_row(item) for item in self._tried]

    @property
    def best(self) -> Experiment:
        """The experiment to run: it stops at the target."""
        machine: dict[str, Any] = {"engine": "auto", "cluster": None, "link": None}
        return self.chosen.experiment.replace(target=self.target, **machine)

    @property
    def table(self) -> list[dict[str, Any]]:
        """Every setting as a flat dictionary of numbers and text, the chosen one first."""
        return self.records()

    @property
    def predicted_seconds(self) -> float:
        """Predicted training time to the target, without startup, evaluation and saving."""
        return self.chosen.cost.training if self.chosen.cost else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The range in which the training time to the target should lie in eight of ten runs."""
        return self.chosen.interval or (math.nan, math.nan)

    @property
    def total_seconds(self) -> float:
        """Predicted time of the whole run, with startup, evaluation and saving."""
        return self.chosen.cost.total if self.chosen.cost else math.nan

    @property
    def cost_seconds(self) -> float:
        """Seconds spent on planning, including calibration."""
        return self.search.calibration_seconds + self.search.probe_seconds

    @property
    def repayment(self) -> Repayment | None:
        """The number of runs after which planning has paid off; None if the time of the original setting is unknown."""
        if self.given is None or self.given.cost is None:
            return None
        saved = self.given.cost.total - self.total_seconds
        return Repayment(saved, math.ceil(self.cost_seconds / saved) if saved > 0 else None)

    def columns(self) -> list[Column]:
        shown = self._tried
        varied = len({item.candidate.precision for item in shown}) > 1
        ends = ["chosen" if item is self.chosen else item.dropped or "to the end" for item in shown]

        def hosts(candidate: Candidate) -> str:
            threads = f" × {candidate.threads}" if candidate.threads else ""
            return candidate.device if candidate.device != "cpu" else f"{candidate.workers}{threads}"

        def reaching(item: Assessment) -> str:
            if item.probability is None:
                return NOTHING
            return f"{item.reached} of {item.tried}" if item.tried else f"~{item.probability:.0%}"

        last = [metric_value(item.probes[-1].metric, item.probes[-1].value) for item in shown]
        return [
            Column("", "", ["→" if item is self.chosen else "" for item in shown], words=True),
            Column("workers × threads", "workers", [hosts(item.candidate) for item in shown]),
            Column("batch size", "batch", [f"{item.experiment.training.samples_per_step}" for item in shown]),
            *(
                [Column("precision", "precision", [item.candidate.precision for item in shown], words=True)]
                if varied
                else []
            ),
            Column("averaging", "averaging", [_mixing(item) for item in shown], words=True),
            Column("epoch, predicted", "epoch", [duration(item.epoch_seconds) for item in shown]),
            Column("epochs to target", "epochs", [f"{item.epochs}" if item.epochs else NOTHING for item in shown]),
            Column("training to target, predicted", "to target", [_seconds(item) for item in shown]),
            Column("in all, predicted", "in all", [duration(item.cost.total if item.cost else None) for item in shown]),
            Column("runs that reach it", "reach it", [reaching(item) for item in shown]),
            Column(f"{self.search.metric} of the longest probe", "probe", last),
            Column("in the search", "search", ends, words=True),
        ]

    def records(self) -> list[dict[str, Any]]:
        return [_record(assessment, assessment is self.chosen) for assessment in self.search.assessments]

    def extra_json(self) -> dict[str, Any]:
        repaid = self.repayment
        return {
            "target": self.target,
            "metric": self.search.metric,
            "best": self.best.model_dump(mode="json", exclude_none=True),
            "predicted_seconds": self.predicted_seconds,
            "predicted_seconds_low": self.interval[0],
            "predicted_seconds_high": self.interval[1],
            "predicted_total_seconds": self.total_seconds,
            "noise_batch": self.search.noise_batch,
            "cost_seconds": self.cost_seconds,
            "calibration_seconds": self.search.calibration_seconds,
            "seconds_saved_per_run": repaid.seconds_saved if repaid else None,
            "runs_to_repay": repaid.runs if repaid else None,
        }

    def notes(self) -> list[str]:
        untried = {
            reason: sum(assessment.dropped == reason for assessment in self.search.assessments) for reason in UNTRIED
        }
        return [
            "all times are predicted; to target: training time, excluding startup, evaluation and saving",
            f"{summary.INTERVAL}; in all: with startup, evaluation and saving",
            "epochs: the number with the fewest expected seconds to the target, where a run stops; a run that misses "
            "it is repeated with more epochs",
            "reach it: seeds that reached the target in trial runs with these epochs, or (~) the estimated share of "
            "runs",
            "probe: on the validation part, after the longest trial run of the setting or of one that learns the same",
            *summary.speed_notes(self.search.machine_speeds),
            *(DOUBTS[doubt] for doubt in load_doubts(self.search.calibration_load)),
            *(f"not tried: {plural(count, 'setting')} ({why})" for why, count in untried.items() if count),
        ]

    def choice(self) -> list[str]:
        """Return sentences on the chosen setting and on the part on which the target is measured."""
        epochs = plural(self.chosen.epochs or 0, "epoch") + _evidence(self.chosen)
        best = f"best: {describe_candidate(self.chosen.candidate)}{_threads(self.chosen)}, {epochs}"
        share = self.best.data.validation_fraction
        held_out = f": {share:.0%} of the training samples, held out" if share else ""
        return [best, f"the target is measured on the validation part{held_out}; the test part decides nothing"]

    def findings(self) -> list[str]:
        around = interval(*self.interval, self.predicted_seconds)
        best, about_target = self.choice()
        is_for_cluster = self.chosen.candidate.experiment.machine.is_virtual
        lines = [
            best,
            f"predicted: {metric_value(self.search.metric, self.target)} {self.search.metric} after "
            f"{duration(self.predicted_seconds)} {around} of training, {duration(self.total_seconds)} in all"
            + ("" if is_for_cluster else "; `tenfold twin` compares it with a real run"),
            about_target,
        ]
        return [*lines, *filter(None, self.remarks), self._cost()]

    def _cost(self) -> str:
        calibration = self.search.calibration_seconds
        kept = f", {duration(calibration)} of it to measure step times" if calibration > 1 else ""
        text = f"planning took {duration(self.cost_seconds)}{kept}"
        repaid = self.repayment
        if repaid is None:
            return text
        if repaid.runs is None:
            return f"{text}; the experiment as given is just as fast, so planning does not pay off"
        saved, again = duration(repaid.seconds_saved), plural(repaid.runs, "run")
        return f"{text}; each run saves {saved} over the experiment as given, so planning pays off after {again}"

    def report(self, path: str | Path) -> Path:
        from tenfold.reports.pages.page import save_page
        from tenfold.reports.pages.run_pages import render_plan

        return save_page(render_plan(self), path)

    def __repr__(self) -> str:
        chosen = describe_candidate(self.chosen.candidate)
        return f"<Plan: {chosen}, {duration(self.predicted_seconds)} {summary.PREDICTED}>"


def _row(assessment: Assessment) -> Row:
    return Row(
        label=describe_candidate(assessment.candidate),
        settings={},
        experiment=assessment.experiment,
        workers=assessment.candidate.workers,
        threads=assessment.candidate.threads,
        cores=assessment.candidate.workers * (assessment.candidate.threads or 1),
        seconds=Spread((assessment.cost.training,)) if assessment.cost else Spread(),
        clock=summary.PREDICTED,
        interval=assessment.interval,
        bytes_per_worker=0.0,
        times={},
    )


def _mixing(assessment: Assessment) -> str:
    parallel = assessment.candidate.experiment.parallel
    if assessment.candidate.workers == 1:
        return NOTHING
    return "gradients" if parallel.average == "gradients" else f"{parallel.strategy} every {parallel.pace}"


def _threads(assessment: Assessment) -> str:
    threads = assessment.candidate.threads
    return f", {plural(threads, 'thread')} each" if threads else ""


def _evidence(assessment: Assessment) -> str:
    if not assessment.tried:
        return "; extrapolated from shorter runs, as it was not tried with this many epochs"
    early = (
        assessment.stops_after is not None
        and assessment.epochs is not None
        and assessment.stops_after < assessment.epochs
    )
    after = f", which stop after {assessment.stops_after:.1f} epochs on average" if early else ""
    return f"; {assessment.reached} of {plural(assessment.tried, 'seed')} reached the target in trial runs{after}"


def _seconds(assessment: Assessment) -> str:
    if assessment.cost is None or assessment.interval is None:
        return NOTHING
    return f"{duration(assessment.cost.training)} {interval(*assessment.interval, assessment.cost.training)}"


def _record(assessment: Assessment, chosen: bool) -> dict[str, Any]:
    experiment, cost = assessment.candidate.experiment, assessment.cost
    low, high = assessment.interval or (None, None)
    return {
        "chosen": chosen,
        "workers": assessment.candidate.workers,
        "threads": assessment.candidate.threads,
        "device": assessment.candidate.device,
        "precision": assessment.candidate.precision,
        "batch_size": experiment.training.samples_per_step,
        "strategy": experiment.parallel.strategy,
        "average": experiment.parallel.average,
        "sync_every": experiment.parallel.pace if experiment.parallel.average == "weights" else 1,
        "epochs": assessment.epochs,
        "epochs_to_target": assessment.stops_after,
        "epoch_seconds": assessment.epoch_seconds,
        "seconds_to_target": cost.training if cost else None,
        "seconds_low": low,
        "seconds_high": high,
        "total_seconds": cost.total if cost else None,
        "probed_samples": assessment.probes[-1].samples if assessment.probes else 0,
        "probed_value": assessment.probes[-1].value if assessment.probes else None,
        "probability": assessment.probability,
        "expected_seconds": assessment.expected,
        "seeds_tried": assessment.tried,
        "seeds_reached": assessment.reached,
        "dropped": assessment.dropped,
    }
