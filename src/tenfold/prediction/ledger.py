"""The ledger of predictions for this machine and their outcomes, from which the typical error is computed.

Every prediction is recorded, and scored by each run of the same experiment on this machine within a day. Both are lines
of `predictions.jsonl`, beside this machine's profile. A run that stops early is compared with the same share of the
predicted time, and a plan with the time to the target.
"""

import hashlib
import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from time import time
from typing import Any, Self

from tenfold.cluster.time_prediction import LEVEL, TimePrediction
from tenfold.common.files import read_regular, write_atomically
from tenfold.experiment import Experiment
from tenfold.machine.metadata import profile_path
from tenfold.runs import Run

MOST_SCORES = 200
"""The number of latest scores that are used, for the same reason."""
USUAL_ERROR, USUAL_WEIGHT = 0.08, 8
"""The relative error assumed before any run is scored, of a prediction and between repeated runs, and its weight."""
DEVIATIONS = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""The half-width of an interval, in standard deviations of a normal error."""
LARGEST_ERROR = 0.5
"""Larger errors are clipped to this value, because something else must have happened to the machine."""
VALID_SECONDS = 24 * 3600.0
"""Seconds after which runs no longer score a prediction, because the machine and its load change."""
NOTABLE_DIFFERENCE = 0.05
"""Settings whose measured times differ by less than this count as equally fast."""
NOTED = {"key": str, "group": str, "setting": str, "predicted": float, "low": float, "high": float}
"""The record of a prediction."""
LARGEST_BYTES = 1 << 20
"""A ledger that has grown beyond this is cut to its latest half."""
NOT_COMPARED = ("name", "engine", "cluster", "link", "seed")
"""Fields in which a prediction and the run that tests it may differ."""


@dataclass(frozen=True)
class Score:
    """A prediction and a run that tests it. Times are in seconds; the predicted time is for the steps of the run."""

    key: str
    """The same for the same experiment."""
    group: str
    """The same for settings that can be ranked by their times: those of one model, data set and number of epochs."""
    setting: str
    predicted: float
    low: float
    high: float
    measured: float
    noted: float = 0.0
    """When the prediction was made, in seconds since 1970: the same for all runs that test it."""
    share: float = 1.0
    """The share of the predicted steps that was run."""
    typical: float = 0.0
    """The typical error that its interval allows for; 0 if it allows for none or this is not known."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def is_covered(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def needed_error(self) -> float:
        """The typical error with which the interval would just have contained the run.

        sqrt((e / z)^2 - s^2), at least 0, where e = log(predicted / measured), at most 0.5, and s is the standard
        deviation that the interval allows for without a typical error.
        """
        error = min(LARGEST_ERROR, abs(math.log(self.predicted / self.measured))) / DEVIATIONS
        whole = math.log(self.high / self.low) / 2 / DEVIATIONS
        own = whole**2 - math.log1p(self.typical) ** 2 if self.typical else 0.0
        return math.sqrt(max(0.0, error**2 - max(0.0, own)))


@dataclass(frozen=True)
class Ledger:
    """The latest scores of this machine."""

    scores: tuple[Score, ...] = ()

    @classmethod
    def load(cls) -> Self:
        """Read the ledger of this machine, or return an empty one if there is none."""
        noted: dict[str, dict[str, Any]] = {}
        scores = []
        for line in _lines():
            if "predicted" in line:
                noted[line["key"]] = line
            elif (prediction := noted.get(line["key"])) is not None:
                scores.append(_score(prediction, line))
        return cls(tuple(scores[-MOST_SCORES:]))

    @classmethod
    def note(cls, experiment: Experiment, samples: int, prediction: TimePrediction, typical_error: float) -> None:
        """Keep a prediction until its experiment, with this number of training samples, is trained here.

        Its interval allows for the `typical_error`.
        """
        steps, seconds = max(prediction.marks, default=0), prediction.seconds
        about: dict[str, str | float] = {"until": "end", "steps": steps, "typical": typical_error}
        cls._note(experiment, samples, seconds, prediction.interval, **about)

    @classmethod
    def note_plan(cls, best: Experiment, samples: int, seconds: float, interval: tuple[float, float]) -> None:
        """Keep the predicted time to the target of the experiment that a plan recommends, in the same way."""
        cls._note(best, samples, seconds, interval, until="target")

    @staticmethod
    def _note(
        experiment: Experiment, samples: int, seconds: float, interval: tuple[float, float], **about: str | float
    ) -> None:
        parallel, (low, high) = experiment.parallel, interval
        rounds = f"{parallel.strategy}, {'gradients' if parallel.average == 'gradients' else parallel.pace}"
        setting = f"{experiment.title}: {parallel.workers} x {experiment.machine.threads or 'auto'}, {rounds}"
        group = _digest(experiment.model.model_dump_json(), samples, experiment.training.epochs, about["until"])
        times = {"predicted": seconds, "low": low, "high": high}
        key = _key(experiment, samples)
        _append({"key": key, "group": group, "setting": setting} | times | about | {"at": time()})

    @classmethod
    def score(cls, run: Run) -> None:
        """Score the prediction of a measured run, if there is one; a plan only if the run reaches the target."""
        if run.clock != "measured" or not run.seconds:
            return
        key = _key(run.experiment, run.metadata["data"]["train"])
        noted = next((line for line in reversed(_lines()) if line["key"] == key and "predicted" in line), None)
        if noted is None or time() - noted.get("at", 0.0) > VALID_SECONDS:
            return
        measured, share = run.seconds, 1.0
        if noted.get("until") == "target":
            measured = run.seconds_to_target or 0.0
        elif run.result.get("stopped_early") or run.seconds_to_target:
            share = run.result["steps"] / noted["steps"] if noted.get("steps") else 0.0
        if measured and share:
            _append({"key": key, "measured": measured, "share": min(1.0, share), "at": time()})

    @property
    def median_error(self) -> float | None:
        """The median absolute relative error of the predictions, each the median over its runs; None without scores."""
        return statistics.median(abs(_median_error(scores)) for scores in self.by_prediction()) if self.scores else None

    @property
    def coverage(self) -> float | None:
        """The share of runs whose time lay in the predicted interval; None without scores."""
        return statistics.fmean(score.is_covered for score in self.scores) if self.scores else None

    @property
    def typical_error(self) -> float:
        """The error with which eight of ten runs would have lain in their intervals, 0.08 until scores say otherwise.

        The smallest x for which (w P(|N(0, 0.08)| <= z x) + k(x)) / (w + n) is 0.8, over n predictions, w = 8, where
        k(x) counts the predictions whose runs would have been covered; each of several runs counts in part.
        """
        needed = [(score.needed_error, 1 / len(scores)) for scores in self.by_prediction() for score in scores]
        weight = USUAL_WEIGHT + sum(part for _, part in needed)

        def covered(error: float) -> float:
            usual = 2 * NormalDist(0, USUAL_ERROR).cdf(DEVIATIONS * error) - 1
            return (USUAL_WEIGHT * usual + sum(part for own, part in needed if own <= error)) / weight

        low, high = 0.0, LARGEST_ERROR
        while high - low > USUAL_ERROR / 1000:
            middle = (low + high) / 2
            low, high = (low, middle) if covered(middle) >= LEVEL else (middle, high)
        return high

    @property
    def spread(self) -> float:
        """The standard deviation of log seconds from one run to the next of a setting, 0.08 until scores say otherwise.

        sqrt((w 0.08^2 + sum (x - mean)^2) / (w + runs - predictions)) over the runs of each prediction, w = 8.
        """
        total, freedom = USUAL_WEIGHT * USUAL_ERROR**2, USUAL_WEIGHT
        for scores in self.by_prediction():
            logs = [
                max(-LARGEST_ERROR, min(LARGEST_ERROR, math.log(item.measured / item.predicted))) for item in scores
            ]
            total += statistics.pvariance(logs) * len(logs)
            freedom += len(logs) - 1
        return math.sqrt(total / freedom)

    def by_prediction(self) -> list[list[Score]]:
        groups: dict[tuple[str, float], list[Score]] = {}
        for score in self.scores:
            groups.setdefault((score.key, score.noted), []).append(score)
        return list(groups.values())

    def rank_correlation(self) -> tuple[float, int] | None:
        """Return Kendall's tau of predicted and measured times, and the number of pairs; None without pairs.

        tau = (concordant - discordant) / pairs, over pairs of settings of one model and data set whose measured times
        differ by more than 5%. The latest prediction for a setting counts, and the median of its whole runs.
        """
        latest: dict[str, dict[str, tuple[float, float]]] = {}
        for scores in self.by_prediction():
            if whole := [score for score in scores if score.share == 1]:
                times = whole[0].predicted, statistics.median(score.measured for score in whole)
                latest.setdefault(whole[0].group, {})[whole[0].key] = times
        signs = [sign for settings in latest.values() for sign in _concordances(list(settings.values()))]
        return (statistics.fmean(signs), len(signs)) if signs else None

    def record(self) -> dict[str, Any]:
        return {
            "predictions": len(self.by_prediction()),
            "scored": len(self.scores),
            "median_error": self.median_error,
            "coverage": self.coverage,
            "rank_correlation": self.rank_correlation(),
            "typical_error": self.typical_error,
            "spread": self.spread,
            "scores": [asdict(score) | {"error": score.error} for score in self.scores],
        }


def _score(prediction: dict[str, Any], run: dict[str, Any]) -> Score:
    share = run.get("share", 1.0)
    times = {name: share * prediction[name] for name in ("predicted", "low", "high")}
    about = {name: prediction[name] for name in ("key", "group", "setting")}
    noted, typical = prediction.get("at", 0.0), prediction.get("typical", 0.0)
    return Score(**about, **times, measured=run["measured"], noted=noted, share=share, typical=typical)


def _median_error(scores: Sequence[Score]) -> float:
    return statistics.median(score.error for score in scores)


def _concordances(settings: Sequence[tuple[float, float]]) -> Iterable[int]:
    """Yield 1 for each pair of settings, predicted and measured, that was ranked correctly, and -1 for others."""
    for (predicted, measured), (other_predicted, other_measured) in combinations(settings, 2):
        apart = math.log(measured / other_measured)
        if abs(apart) > math.log1p(NOTABLE_DIFFERENCE):
            yield 1 if apart * math.log(predicted / other_predicted) > 0 else -1


def ledger_path() -> Path:
    """Return where the ledger is: beside this machine's profile."""
    return profile_path().with_name("predictions.jsonl")


def _key(experiment: Experiment, samples: int) -> str:
    fields = {name: value for name, value in experiment.flat().items() if name not in NOT_COMPARED}
    return _digest(json.dumps(fields, sort_keys=True, default=str), samples)


def _digest(*values: object) -> str:
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def _lines() -> list[dict[str, Any]]:
    """Return the readable lines of the ledger."""
    lines = []
    with suppress(OSError):
        for text in read_regular(ledger_path()).decode(errors="replace").splitlines():
            with suppress(ValueError):
                line = json.loads(text)
                if _is_valid(line):
                    lines.append(line)
    return lines


def _is_valid(line: Any) -> bool:
    if not isinstance(line, dict):
        return False
    types = NOTED if "predicted" in line else {"key": str, "measured": float}
    values = [line.get(name) for name in types]
    times = [value for value in values if isinstance(value, float)]
    times += [line.get(name, 1.0) for name in ("at", "share", "typical")]
    return all(map(isinstance, values, types.values())) and all(
        isinstance(value, int | float) and 0 < value < math.inf for value in times
    )


def _append(line: dict[str, Any]) -> None:
    """Append a line; a ledger that cannot be written must not end a training."""
    with suppress(OSError):
        path = ledger_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LARGEST_BYTES:
            kept = read_regular(path).splitlines(keepends=True)
            write_atomically(path, b"".join(kept[len(kept) // 2 :]))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)
