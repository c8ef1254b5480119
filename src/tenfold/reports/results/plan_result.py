"""The plan of an experiment: the settings it was chosen from, and when each should reach the target."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.experiment import Experiment
from tenfold.prediction.planning.evidence import UNTRIED, Assessment, Search, describe_candidate
from tenfold.reports import clocks
from tenfold.reports.formatting import NOTHING, duration, interval, metric_value, plural
from tenfold.reports.results.comparison import ResultTable
from tenfold.reports.rows import Row, Spread
from tenfold.reports.tables.columns import Column


@dataclass(frozen=True)
class Repayment:
    """After how many runs a plan has saved the seconds that it cost."""

    seconds_saved: float
    """By one run, compared with the experiment as it was given."""
    runs: int | None
    """None: the plan saves nothing."""


class Plan(ResultTable):
    """The setting that should reach a target soonest, and the table it was chosen from; all times are predicted."""

    def __init__(self, found: Search, chosen: Assessment, given: Assessment | None, target: float) -> None:
        self.search = found
        self.chosen = chosen
        self.given = given
        """The setting of the experiment as it was given; None if it was not among the candidates."""
        self.target = target
        self._tried = [assessment for assessment in found.assessments if assessment.probes]
        self.rows = [_row(one) for one in self._tried]

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
        return self.chosen.price.training if self.chosen.price else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The range in which the training time to the target should lie in nine of ten runs."""
        return self.chosen.interval or (math.nan, math.nan)

    @property
    def total_seconds(self) -> float:
        """Predicted time of the whole run, with startup, evaluation and saving."""
        return self.chosen.price.total if self.chosen.price else math.nan

    @property
    def cost_seconds(self) -> float:
        """What planning took, calibration included."""
        return self.search.calibration_seconds + self.search.probe_seconds

    @property
    def repayment(self) -> Repayment | None:
        """After how many runs planning has paid off; None if the time of the given setting is not known."""
        if self.given is None or self.given.price is None:
            return None
        saved = self.given.price.total - self.total_seconds
        return Repayment(saved, math.ceil(self.cost_seconds / saved) if saved > 0 else None)

    def columns(self) -> list[Column]:
        """Return the columns of the table."""
        shown = self._tried
        ends = ["chosen" if one is self.chosen else one.dropped or "to the end" for one in shown]
        return [
            Column("", "", ["→" if one is self.chosen else "" for one in shown], words=True),
            Column("workers × threads", "workers", [_hosts(one) for one in shown]),
            Column("batch size", "batch", [f"{one.experiment.training.samples_per_step}" for one in shown]),
            Column("averaging", "averaging", [_mixing(one) for one in shown], words=True),
            Column("epoch, predicted", "epoch", [duration(one.epoch_seconds) for one in shown]),
            Column("epochs to target", "epochs", [f"{one.epochs}" if one.epochs else NOTHING for one in shown]),
            Column("training to target, predicted", "to target", [_seconds(one) for one in shown]),
            Column("in all, predicted", "in all", [duration(one.price.total if one.price else None) for one in shown]),
            Column("runs that reach it", "reach it", [_reaching(one) for one in shown]),
            Column(f"{self.search.metric} of the longest probe", "probe", [_probed(one) for one in shown]),
            Column("in the search", "search", ends, words=True),
        ]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as flat dictionaries of numbers and text."""
        return [_record(assessment, assessment is self.chosen) for assessment in self.search.assessments]

    def extra_json(self) -> dict[str, Any]:
        """Return the choice, what it should take, and what planning cost."""
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
        """Return the lines that explain the table."""
        untried = {
            reason: sum(assessment.dropped == reason for assessment in self.search.assessments) for reason in UNTRIED
        }
        return [
            "all times are predicted; to target: training time without startup, evaluation, saving",
            f"{clocks.INTERVAL}; in all: with startup, evaluation and saving",
            "epochs: those with the fewest expected seconds in all to the target, where a run stops; one that misses "
            "it is repeated with more",
            "reach it: seeds that reached the target in trial runs with these epochs, or (~) the estimated share of "
            "runs",
            "probe: the longest run in the search of it or of another that learns the same, on the validation part",
            *clocks.speed_notes(self.search.machine_speeds),
            *(f"not tried: {plural(count, 'setting')} ({why})" for why, count in untried.items() if count),
        ]

    def findings(self) -> list[str]:
        """Return the choice, what it should take, and what planning cost."""
        around = interval(*self.interval, self.predicted_seconds)
        epochs = plural(self.chosen.epochs or 0, "epoch") + _evidence(self.chosen)
        lines = [
            f"best: {describe_candidate(self.chosen.candidate)}{_threads(self.chosen)}, {epochs}",
            f"predicted: {metric_value(self.search.metric, self.target)} {self.search.metric} after "
            f"{duration(self.predicted_seconds)} {around} of training, {duration(self.total_seconds)} in all"
            + ("" if self.is_for_cluster else "; `tenfold twin` compares it with a real run"),
            self._about_target(),
        ]
        return [*lines, self._cost()]

    @property
    def is_for_cluster(self) -> bool:
        """Whether the times are those of a cluster, not of this machine."""
        return self.chosen.candidate.experiment.machine.engine == "virtual"

    def _about_target(self) -> str:
        share = self.best.data.validation_fraction
        held_out = f": {share:.0%} of the training samples, held out" if share else ""
        return f"the target is measured on the validation part{held_out}; the test part decides nothing"

    def _cost(self) -> str:
        calibration = self.search.calibration_seconds
        kept = f", {duration(calibration)} of it to measure step times" if calibration > 1 else ""
        text = f"planning took {duration(self.cost_seconds)}{kept}"
        repaid = self.repayment
        if repaid is None:
            return text
        if repaid.runs is None:
            return f"{text}; the experiment as given is as fast, so it is not earned back"
        saved, again = duration(repaid.seconds_saved), plural(repaid.runs, "run")
        return f"{text}; a run saves {saved} over the experiment as given: earned back after {again}"

    def report(self, path: str | Path) -> Path:
        """Write an HTML report with the table and the learning curves, and return its path."""
        from tenfold.reports.pages.page import save_page
        from tenfold.reports.pages.run_pages import render_plan

        return save_page(render_plan(self), path)

    def __repr__(self) -> str:
        chosen = describe_candidate(self.chosen.candidate)
        return f"<Plan: {chosen}, {duration(self.predicted_seconds)} {clocks.PREDICTED}>"


def _row(one: Assessment) -> Row:
    return Row(
        label=describe_candidate(one.candidate),
        settings={},
        experiment=one.experiment,
        workers=one.candidate.workers,
        threads=one.candidate.threads,
        cores=one.candidate.workers * (one.candidate.threads or 1),
        seconds=Spread((one.price.training,)) if one.price else Spread(),
        clock=clocks.PREDICTED,
        interval=one.interval,
        bytes_per_worker=0.0,
        times={},
    )


def _hosts(one: Assessment) -> str:
    if one.candidate.device != "cpu":
        return one.candidate.device
    threads = one.candidate.threads
    return f"{one.candidate.workers} × {threads}" if threads else f"{one.candidate.workers}"


def _mixing(one: Assessment) -> str:
    parallel = one.candidate.experiment.parallel
    if one.candidate.workers == 1:
        return NOTHING
    return "gradients" if parallel.average == "gradients" else f"{parallel.strategy} every {parallel.pace}"


def _threads(one: Assessment) -> str:
    threads = one.candidate.threads
    return f", {plural(threads, 'thread')} each" if threads else ""


def _evidence(one: Assessment) -> str:
    if not one.tried:
        return "; it was not tried with these epochs, so they are extrapolated from shorter runs"
    early = one.stops_after is not None and one.epochs is not None and one.stops_after < one.epochs
    after = f", which stop after {one.stops_after:.1f} epochs on average" if early else ""
    return f"; {one.reached} of {plural(one.tried, 'seed')} reached the target in trial runs{after}"


def _reaching(one: Assessment) -> str:
    if one.probability is None:
        return NOTHING
    return f"{one.reached} of {one.tried}" if one.tried else f"~{one.probability:.0%}"


def _seconds(one: Assessment) -> str:
    if one.price is None or one.interval is None:
        return NOTHING
    return f"{duration(one.price.training)} {interval(*one.interval, one.price.training)}"


def _probed(one: Assessment) -> str:
    return metric_value(one.probes[-1].metric, one.probes[-1].value) if one.probes else NOTHING


def _record(one: Assessment, chosen: bool) -> dict[str, Any]:
    experiment, price = one.candidate.experiment, one.price
    low, high = one.interval or (None, None)
    return {
        "chosen": chosen,
        "workers": one.candidate.workers,
        "threads": one.candidate.threads,
        "device": one.candidate.device,
        "batch_size": experiment.training.samples_per_step,
        "strategy": experiment.parallel.strategy,
        "average": experiment.parallel.average,
        "sync_every": experiment.parallel.pace if experiment.parallel.average == "weights" else 1,
        "epochs": one.epochs,
        "epochs_to_target": one.stops_after,
        "epoch_seconds": one.epoch_seconds,
        "seconds_to_target": price.training if price else None,
        "seconds_low": low,
        "seconds_high": high,
        "total_seconds": price.total if price else None,
        "probed_samples": one.probes[-1].samples if one.probes else 0,
        "probed_value": one.probes[-1].value if one.probes else None,
        "probability": one.probability,
        "expected_seconds": one.expected,
        "seeds_tried": one.tried,
        "seeds_reached": one.reached,
        "dropped": one.dropped,
    }
