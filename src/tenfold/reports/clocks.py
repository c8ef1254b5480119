"""Measured and predicted times: every time that is shown says which of the two it is."""

from collections.abc import Iterable
from typing import Protocol

from tenfold.prediction.ledger import Ledger
from tenfold.reports.formatting import duration, interval, plural
from tenfold.runs import Run

MEASURED, PREDICTED = "measured", "predicted"
HOW_RUN = {MEASURED: "real", PREDICTED: "simulated"}
"""What runs are called by their clock in plots of metrics: a simulated run learns exactly as a real one."""
INTERVAL = "[low-high]: eight of ten runs should fall in this range"
UNCALIBRATED = (
    "uncalibrated: step times were given by hand, not measured, and the predicted times are no better than these"
)


class HasClock(Protocol):
    """Anything with times that were measured or predicted."""

    @property
    def clock(self) -> str:
        """Either "measured" or "predicted"."""
        ...


def clock_names(timed: Iterable[HasClock]) -> str:
    """Return "measured", "predicted", or "measured and predicted"."""
    found = {item.clock for item in timed}
    return " and ".join(sorted(found)) or MEASURED


def is_uncalibrated(run: Run) -> bool:
    """Return whether the times were predicted from hardware that was described by hand."""
    return run.clock == PREDICTED and run.result.get("calibrated") is False


def speed_notes(speeds: Iterable[float]) -> list[str]:
    """Return a sentence on how fast this machine was for predictions, if not as fast as when it was calibrated."""
    found = [f"{speed:.2g}x" for speed in sorted(speeds)]
    if set(found) <= {"1x"}:
        return []
    ends = " to ".join(dict.fromkeys((found[0], found[-1])))
    return [f"this machine is now {ends} as fast as when calibrated; predicted times are scaled by it"]


def ledger_note(ledger: Ledger) -> str:
    """Return a sentence on how close predictions for this machine came to the runs that tested them; "" without any."""
    if ledger.median_error is None or ledger.coverage is None:
        return ""
    ranked = ledger.rank_correlation()
    tau = (
        f"; Kendall's tau {ranked[0]:.2f} over {plural(ranked[1], 'pair')} that differ by more than 5%"
        if ranked
        else ""
    )
    predictions, runs = plural(len(ledger.by_prediction()), "prediction"), plural(len(ledger.scores), "run")
    return (
        f"{predictions} for this machine, tested by {runs}: "
        f"median error {ledger.median_error:.1%}; {ledger.coverage:.0%} of the runs in their 80% interval{tau}"
    )


def describe_clock(run: Run) -> str:
    """Return what follows a time: "measured", or "predicted [1.18-1.31], uncalibrated"."""
    around = f" {interval(*run.interval, run.seconds)}" if run.interval and run.seconds is not None else ""
    return f"{run.clock}{around}{', uncalibrated' if is_uncalibrated(run) else ''}"


def training_time(run: Run) -> str:
    """Return the training time with its clock: "1.24 s predicted [1.18-1.31]"."""
    return f"{duration(run.seconds)} {describe_clock(run)}" if run.seconds is not None else duration(None)


def page_statement(timed: Iterable[HasClock]) -> str:
    """Return the sentence at the foot of a page that says whether its times were measured or predicted."""
    return {
        MEASURED: "Every time on this page was measured",
        PREDICTED: "Every time on this page is predicted, unless marked as measured",
    }.get(clock_names(timed), "Every time on this page was measured, unless marked as predicted or simulated")
